"""Pictures of answers: the page that --report writes (docs/report.md), and its pictures in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

from . import _core
from ._errors import Error

if TYPE_CHECKING:
    import os


class _Drawing:
    """The data of pictures. The answer and its copies keep it alive. It is pickled as None."""

    __slots__ = ("native", "call")

    def __init__(self, native: _core.Report, call: str) -> None:
        self.native = native
        self.call = call

    def __copy__(self) -> _Drawing:
        return self

    def __deepcopy__(self, memo: Any) -> _Drawing:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()


# Runs in the notebook's page when the frame is loaded. Light text means a dark background. The frame's height follows
# its content, also when its width changes or a table is unfolded. If a front end blocks scripts, the frame keeps its
# height and scrolls, in the colours of the reader's system.
_FIT = """
const page = this.contentDocument;
if (page) {
  const ink = getComputedStyle(this.parentElement).color.match(/^rgba?\\((\\d+), (\\d+), (\\d+)/);
  if (ink) page.documentElement.className = +ink[1] + +ink[2] + +ink[3] > 382 ? 'dark' : 'light';
  page.documentElement.style.overflow = 'hidden';
  const fit = () => { this.style.height = page.body.offsetHeight + 'px'; };
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(page.body);
}
"""
_HEIGHT = 640  # CSS pixels, until the script has run


class Drawn:
    """An answer that has pictures."""

    _drawing: ClassVar[Optional[_Drawing]] = None  # not a field, so it is not compared and not in asdict()

    def _draws(self, result: dict[str, Any], call: str) -> None:
        object.__setattr__(self, "_drawing", _Drawing(result["report"], call))

    def report(self) -> str:
        """The answer as one HTML page with pictures and tables of their numbers, as the program writes with
        --report. It has no scripts and fetches nothing. Each call draws it again.

        Raises zeroplan.Error if the answer is from a pickle or dataclasses.replace().
        """
        if self._drawing is None:
            raise Error(
                "report: an answer that came out of a pickle or dataclasses.replace() has nothing to draw "
                f"pictures from; ask zeroplan.{type(self).__name__.lower()}() again, or call save_report() "
                "before pickling"
            )
        return _core.page(self._drawing.native, self._drawing.call)

    def save_report(self, file: Union[str, os.PathLike[str]]) -> None:
        """Writes the page of report() for a browser."""
        page = self.report()
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(page)

    def _pictures_html(self) -> str:
        """The page's pictures in a frame, so that neither style affects the other; empty if there is
        no data to draw from."""
        if self._drawing is None:
            return ""
        page = html.escape(_core.pictures(self._drawing.native))
        return (
            f'<iframe title="Pictures" sandbox="allow-same-origin" onload="{html.escape(_FIT.strip())}" '
            f'style="display:block; width:100%; height:{_HEIGHT}px; border:0" srcdoc="{page}"></iframe>'
        )
