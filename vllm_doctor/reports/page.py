"""A page of a terminal report: lines of styled pieces. Written out plain, or with ANSI colours by Rich.

Pieces are data, never markup: nothing in a quoted line is interpreted.
"""

from __future__ import annotations

from .plain import cells, clean, wrap

Piece = tuple[str, str]  # text, Rich style ("" for none)


class Page:
    """Collects lines. Every text is cleaned here, once, so no caller can forget it."""

    def __init__(self, width: int) -> None:
        self.width = max(width, 40)
        self.lines: list[list[Piece]] = []

    def blank(self) -> None:
        """An empty line, never two in a row and never the first."""
        if self.lines and self.lines[-1]:
            self.lines.append([])

    def heading(self, text: str, note: str = "") -> None:
        self.blank()
        self.text(note, indent=0, lead=f"{text}  " if note else text, hang=2, style="dim", lead_style="bold")

    def raw(self, text: str, indent: int, style: str = "") -> None:
        """A line that is to be copied: never wrapped."""
        self.lines.append([(" " * indent + clean(text), style)])

    def text(self, text: str, indent: int = 2, style: str = "", lead: str = "", lead_style: str = "", hang: int | None = None) -> None:
        """A paragraph. `lead` opens its first line; the following lines start below the text, or at `indent + hang`."""
        lead = clean(lead)
        size = cells(lead)
        hang = size if hang is None else hang
        lead += " " * (hang - size)
        rows = wrap(clean(text), self.width - indent - hang, start=max(size - hang, 0))
        self.lines.append([(" " * indent, ""), (lead, lead_style), (rows[0], style)])
        self.lines += [[(" " * (indent + hang) + row, style)] for row in rows[1:]]

    def render(self, color: bool) -> str:
        """The page, with a newline after each line and no trailing spaces."""
        while self.lines and not self.lines[-1]:
            self.lines.pop()
        if not color:
            return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in self.lines)
        import io

        from rich.console import Console
        from rich.text import Text

        out = io.StringIO()
        console = Console(
            file=out, force_terminal=True, color_system="standard", width=10_000, highlight=False, markup=False, emoji=False,
            legacy_windows=False, _environ={},
        )  # fmt: skip
        for line in self.lines:
            styled = Text()
            for text, style in line:
                styled.append(text, style=style)
            styled.rstrip()
            console.print(styled, soft_wrap=True)
        return out.getvalue()
