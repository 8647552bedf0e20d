"""The recipe language as a reference: every key, from the same source that recipes are checked by.

python -m binep.training.keys > docs/recipes.md
"""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from binep.errors import BinepError
from binep.training.checking import takes
from binep.training.recipe import Recipe, toml
from binep.training.sections import LayerKeys, RateSchedule, ScheduleKeys

RATE = "RATE"  # stands for any rate that can have a schedule
NO_DEFAULT, UNSET = "no default", "not set"

INTRODUCTION = """\
# Recipes

A recipe is a TOML file: everything that defines a training run. `binep recipes` lists those that
ship, `binep recipes NAME` prints one completely, and your own file works wherever a name does. It
may say only what differs from another recipe, a name or a file:

```toml
extends = "mnist-1fc-w"
summary = "A narrower network, with centered estimates"

[network]
dense = [1024]

[learning]
sign = "centered"
```

`--set section.key=value` changes one key, for `train` and every other command that takes a recipe.
Values are written as in TOML; texts need no quotes, and lists no brackets:

    binep train mnist-1fc-w --set learning.sign=centered --set optimizer.gamma=1e-4,1e-5

Where a key takes a number or a list, a list has one value for each coupling (for each convolution,
for `kernel`, `padding` and `pool`), from input to output. A key that is not there, has a value of
another type or beyond its limits is refused with one line that says what is allowed. All keys are
below; `binep recipes --keys` prints them, `--filter` some of them.
"""


@dataclass(frozen=True)
class Key:
    """One key of a recipe, in words: where, what it takes, its default, meaning, an example."""

    path: str
    takes: str
    default: str
    meaning: str
    example: str

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]


def all_keys() -> list[Key]:
    """All keys in their order; the schedules of all rates, which are alike, are told once."""
    return [*_keys_of(Recipe, "")]


def _keys_of(cls: type, where: str) -> Iterator[Key]:
    hints = get_type_hints(cls)
    for spec in fields(cls):
        hint, path = hints[spec.name], f"{where}.{spec.name}".lstrip(".")
        if hint is ScheduleKeys:
            yield from _keys_of(RateSchedule, f"{path}.{RATE}")
        elif is_dataclass(hint):
            yield from _keys_of(hint, path)  # type: ignore[arg-type]
        else:
            yield Key(
                path,
                takes(hint, spec),
                _default(spec),
                spec.metadata["meaning"],
                f"{spec.name} = {toml(spec.metadata['example'])}",
            )
            if "each" in spec.metadata:
                yield from _keys_of(spec.metadata["each"], path)


def _default(spec: Field) -> str:
    if spec.default_factory is not MISSING:
        return toml(spec.default_factory())
    if spec.default is MISSING:
        return NO_DEFAULT
    return UNSET if spec.default is None else toml(spec.default)


def text(words: Sequence[str] = ()) -> str:
    """Keys with any of these words in their path or meaning, for a terminal."""
    found = [
        key
        for key in all_keys()
        if not words or any(w.lower() in f"{key.path} {key.meaning}".lower() for w in words)
    ]
    if not found:
        raise BinepError(f"no key has {' or '.join(map(repr, words))} in its name or meaning")
    return "\n".join(
        f"{key.path}{'' if key.default in (NO_DEFAULT, UNSET) else f' = {key.default}'}\n"
        f"    {key.meaning}\n"
        f"    {key.takes}; for example {key.example}"
        for key in found
    )


def page() -> str:
    """All of it in Markdown: docs/recipes.md."""
    lines, section = [INTRODUCTION], None
    for key in all_keys():
        if key.section != section:
            section = key.section
            lines += _heading(section)
        lines.append(
            f"- **`{key.path.removeprefix(f'{section}.')}`**: {key.meaning}\n"
            f"  *{key.takes[0].upper()}{key.takes[1:]}; {_default_in_words(key.default)}.* "
            f"Example: `{key.example}`"
        )
    return "\n".join(lines) + "\n"


def _heading(section: str) -> list[str]:
    if not section:
        return ["## At the top", "", "`extends`, the name or path of another recipe, and", ""]
    about = _about(section)
    rates = ", ".join(f"`{spec.name}`" for spec in fields(ScheduleKeys))
    more = [f"{RATE} is one of {rates}. {_first_line(RateSchedule)}", ""]
    brackets = "[[{}]]" if about is LayerKeys else "[{}]"
    told = _first_line(about) if about is not LayerKeys else _in_one_line(about)
    return ["", f"## {brackets.format(section)}", "", told, "", *(more if RATE in section else [])]


def _about(section: str) -> Any:
    """The class of a section's keys."""
    top, _, below = section.partition(".")
    return LayerKeys if below == "layers" else get_type_hints(Recipe)[top]


def _first_line(cls: Any) -> str:
    return cls.__doc__.partition("\n\n")[0].strip()


def _in_one_line(cls: Any) -> str:
    return " ".join(cls.__doc__.split())


def _default_in_words(default: str) -> str:
    return default if default in (NO_DEFAULT, UNSET) else f"default `{default}`"


if __name__ == "__main__":
    print(page(), end="")
