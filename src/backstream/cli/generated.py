"""Options of a command, generated from dataclasses: each field is an option, and the text below the field is its help.

    class Shown:
        last: int = 300
        '''The number of latest rows.'''

gives `--last <int>  The number of latest rows. Default: 300.`
"""

import ast
import copy
import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo


class Group(NamedTuple):
    """The options of one dataclass."""

    of: type
    title: str
    """The heading in --help."""
    exceptions: Mapping[str, OptionInfo] = types.MappingProxyType({})
    """Fields whose option has another name or another help text. A single flag turns off what is on by default."""


def generated(**groups: Group) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replaces parameters of a command by options.

    Args:
        groups: For each parameter that is replaced, the group of its options. The command gets a dictionary of the
            fields that the user has given. Other fields are not in it, so that the command knows what to take from a
            configuration file or from the defaults.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        converters: dict[str, dict[str, Callable[[Any], Any]]] = {name: {} for name in groups}
        parameters = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name not in groups:
                parameters.append(parameter)
                continue
            for field, option, convert in _options(groups[parameter.name]):
                option = option.replace(name=f"{parameter.name}_{field}")
                parameters.append(option)
                converters[parameter.name][field] = convert

        @functools.wraps(command)
        def wrapped(**options: Any) -> Any:
            for name, fields in converters.items():
                given = {field: options.pop(f"{name}_{field}") for field in fields}
                options[name] = {field: fields[field](value) for field, value in given.items() if value is not None}
            return command(**options)

        required = [parameter for parameter in parameters if parameter.default is parameter.empty]
        optional = [parameter for parameter in parameters if parameter.default is not parameter.empty]
        wrapped.__signature__ = inspect.Signature(required + optional)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate


class GroupedHelp(TyperCommand):
    """A command whose help lists its options group by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                other = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or other, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _options(group: Group) -> Iterator[tuple[str, inspect.Parameter, Callable[[Any], Any]]]:
    """For each field: its name, a parameter as typer reads it, and the conversion of its value."""
    hints, texts = typing.get_type_hints(group.of, include_extras=True), field_texts(group.of)
    for field in dataclasses.fields(group.of):
        hint, stated = hints[field.name], group.exceptions.get(field.name)
        if typing.get_origin(hint) is Annotated:
            hint, stated = typing.get_args(hint)
        option = typer.Option() if stated is None else copy.copy(stated)
        kind, metavar, convert = _kind(hint)
        option.metavar = option.metavar or metavar
        option.help = option.help or _help(texts.get(field.name, ""), field)
        option.rich_help_panel = group.title
        if option.default is ...:
            option.default = _flag(field)
        if field.default is True and "/" not in str(option.default):  # the flag turns off what is on by default
            convert = operator.not_
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        yield (
            field.name,
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if missing else None,
                annotation=Annotated[kind if missing else kind | None, option],
            ),
            convert,
        )


def field_texts(cls: type) -> dict[str, str]:
    """The strings below the fields of a class, which Python itself does not keep."""
    try:
        tree = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]
    except OSError:  # installed without its source: options then have no help
        return {}
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            texts[field.target.id] = " ".join(str(text.value.value).replace("`", "").split())
    return texts


def _help(text: str, field: dataclasses.Field) -> str:
    """The text below a field, with the default of the field if the text does not have it."""
    if (
        field.default is False
        or field.default == ""
        or not isinstance(field.default, str | int | float)
        or "Default:" in text
    ):
        return text
    shown = field.default if isinstance(field.default, str) else f"{field.default:g}"
    return f"{text} Default: {_flag(field).partition('/')[0] if field.default is True else shown}."


def _flag(field: dataclasses.Field) -> str:
    name = f"--{field.name.replace('_', '-')}"
    return f"{name}/--no-{name[2:]}" if field.default is True else name


def _kind(hint: Any) -> tuple[Any, str | None, Callable[[Any], Any]]:
    """The type of an option, what stands for its value in the help, and the conversion of its value."""
    arms = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if len(arms) == 1:
            return _kind(arms[0])
        words = [word for arm in arms for word in typing.get_args(arm)]
        return str, "|".join(["NUMBER", *words]), _number_or_word
    if typing.get_origin(hint) is tuple:
        return str, "NAME,NAME", _names
    return hint, None, _same


def _same(value: Any) -> Any:
    return value


def _names(text: str) -> list[str]:
    """Names that are separated by commas, as y1,y2."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _number_or_word(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text
