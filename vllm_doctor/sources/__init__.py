"""What the user hands over: files, folders, archives, stdin, URLs. The only readers of the world."""

from .files import read
from .given import given
from .source import Source

__all__ = ["Source", "given", "read"]
