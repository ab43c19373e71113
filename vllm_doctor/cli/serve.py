"""`vllm-doctor serve`: the paste-in form on this machine, or for a team behind a proxy."""

from __future__ import annotations

import re

import click

from .common import Misuse, emit, language_of, warn


def _base(ctx: click.Context, param: click.Parameter, value: str) -> str:
    base = value.rstrip("/")
    if base and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", base):
        raise click.BadParameter("a path such as /doctor", ctx, param)
    return base


@click.command("serve", short_help="Open the paste-in form on this machine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8008, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--base-path", default="", callback=_base, metavar="PATH", help="Path under which a proxy offers this, such as /doctor.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Host name to answer to, besides this machine's own. May be repeated.")
@click.option("--max-mib", type=click.IntRange(1, 1024), default=64, show_default=True, help="Largest request, in MiB.")
@click.option("--timeout", type=click.FloatRange(1, 3600), default=60.0, show_default=True, metavar="S", help="Longest analysis, in seconds.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Analyses at the same time.")
@click.option("-v", "--verbose", is_flag=True, help="One line per request on stderr. It never holds what was sent.")
def command(*, host: str, port: int, base_path: str, hosts: tuple[str, ...], max_mib: int, timeout: float, workers: int, verbose: bool) -> None:
    """Serves a page to paste logs into, or drop files on, and gives the report back. Nothing is stored and nothing is sent anywhere.

    The engine is the same as that of `analyze`; /api/analyze gives the same JSON. Reports are always redacted.
    """
    from ..language import translator
    from ..web.limits import MIB, Limits
    from ..web.serving import run

    _ = translator(language_of(None))
    limits = Limits(body=max_mib * MIB, buffered=max(4 * max_mib, 256) * MIB, analysis_seconds=timeout, workers=workers)

    def started(address: str) -> None:
        emit(_("vllm-doctor is at {address} (Ctrl-C ends it)").format(address=address) + "\n")

    if host not in ("127.0.0.1", "::1", "localhost"):
        warn(
            _(
                "Warning: on {host} this can be reached from other machines, and it has no accounts. "
                "Put a proxy before it that asks who is there, and name its host with --allow-host."
            ).format(host=host or "0.0.0.0")
        )
    own = () if host in ("0.0.0.0", "::", "") else (host.lower(),)
    try:
        run(limits, host=host, port=port, base=base_path, hosts=(*own, *hosts), started=started, verbose=verbose)
    except OSError as error:
        raise Misuse("cannot listen on {host}:{port}: {reason}", host=host, port=port, reason=error.strerror or error) from None
