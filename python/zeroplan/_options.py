"""Functions whose arguments are the options of a command. Their signatures come from the command's own list;
__init__.pyi has them for editors and type checkers."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, Iterable, Optional, TypeVar, Union

_Path = Union[str, "os.PathLike[str]"]
_Count = Union[int, float, str]  # 8, 10e9, "10B", "24GB"
_Some = Union[int, str, Iterable[Union[int, str]]]  # 2, "cpu", [2, 3], "all"

_F = TypeVar("_F", bound=Callable[..., Any])


def _annotation(name: str, kind: str) -> str:
    """The type of an option's argument, by the placeholder of its value in the help (`kind`; "" for a flag)."""
    if not kind:
        return "bool"
    if name == "data":
        return "Optional[Union[_Path, Iterable[_Path]]]"
    if "FILE,..." in kind:
        return "Optional[Union[_Path, Iterable[str]]]"
    if "FILE" in kind or "DIR" in kind:
        return "Optional[_Path]"
    if "COUNT," in kind or kind == "COUNT|auto" or kind.endswith("|all"):
        return "Optional[_Some]"
    if kind.split("|")[0] in ("COUNT", "TOKENS", "SEQUENCES", "LAYERS", "BYTES", "RANK"):
        return "Optional[_Count]"
    if kind in ("RATIO", "ALPHA", "P", "PRICE", "FACTOR", "NUMBER"):
        return "Optional[float]"
    return "Optional[str]"


def _takes(options: list[list[str]], **first: Any) -> Callable[[_F], _F]:
    """Returns a decorator that sets a function's signature and docstring: the arguments of `first`, then keyword
    arguments for `options` (name, type and help). Without `first` the model may be given without its name."""
    names = {option[2:].replace("-", "_"): (kind, help) for option, kind, help in options}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in first.items()
    ] + [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if name == "model" and not first
            else inspect.Parameter.KEYWORD_ONLY,
            default=None if kind else False,
            annotation=_annotation(name, kind),
        )
        for name, (kind, _) in names.items()
    ]

    def takes(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*values: Any, **arguments: Any) -> Any:
            if values and not first:
                if len(values) > 1 or "model" in arguments:
                    raise TypeError(f"{function.__name__}() takes the model alone without a name; name the others")
                arguments, values = {"model": values[0], **arguments}, ()
            unknown = arguments.keys() - names.keys() - first.keys()
            if unknown:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{min(unknown)}'")
            return function(*values, **arguments)

        checked.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=inspect.signature(function).return_annotation
        )
        lines = [f"    {name}: {help}" for name, (_, help) in names.items()]
        checked.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Arguments:\n" + "\n".join(lines) + "\n"
        return checked  # type: ignore[return-value]

    return takes


def _stub(module: Any) -> str:
    """The text of __init__.pyi."""
    source = inspect.getsource(module)
    imports = source[source.index("from ._errors") : source.index("__version__ =")]
    imports = imports.replace("from ._options import _Path, _Some, _takes\n", "")
    lines = [
        "# Made of the options of the commands (tests/python/test_package.py).",
        "import os",
        "from typing import Any, Iterable, Optional, Union",
        "",
        *imports.rstrip().split("\n"),
        "",
        '_Path = Union[str, "os.PathLike[str]"]',
        "_Count = Union[int, float, str]",
        "_Some = Union[int, str, Iterable[Union[int, str]]]",
        "",
        "__version__: str",
        "__all__: list[str]",
    ]
    for function in (module.estimate, module.plan, module.machines, module.why):
        signature = inspect.signature(function)
        lines += ["", f"def {function.__name__}("]
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        for index, (name, parameter) in enumerate(signature.parameters.items()):
            keyword = inspect.Parameter.KEYWORD_ONLY
            if parameter.kind == keyword and (index == 0 or kinds[index - 1] != keyword):
                lines.append("    *,")
            star = "**" if parameter.kind == inspect.Parameter.VAR_KEYWORD else ""
            annotation = parameter.annotation
            text = annotation if isinstance(annotation, str) else "_Path"
            empty = parameter.default is inspect.Parameter.empty
            lines.append(f"    {star}{name}: {text}{'' if empty else ' = ...'},")
        lines.append(f") -> {signature.return_annotation}: ...")
    return "\n".join(lines) + "\n"
