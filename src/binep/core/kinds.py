"""What a thing is to those who compute it in their own way: its exact type.

An engine or an export that writes `Dense` or `HardSigmoid` out for itself must not take a subclass
of it, whose methods it would ignore. A subclass that computes exactly what its parent computes can
say so in its own body, with `computes_like = Dense`.
"""

from collections.abc import Iterable


def kind_of(thing: object) -> type:
    """The type that a thing computes like: its own, or the one that its class names.

    >>> class Named(list):
    ...     computes_like = list
    >>> class Longer(Named): ...
    >>> kind_of(Named()), kind_of(Longer())
    (<class 'list'>, <class 'binep.core.kinds.Longer'>)
    """
    own = type(thing)
    return vars(own).get("computes_like", own)


def name_of(thing: object) -> str:
    """How to speak of a thing that is not known: by what is peculiar to it, or by its type."""
    return getattr(thing, "peculiarity", None) or kind_of(thing).__name__


def is_one_of(thing: object, kinds: Iterable[type]) -> bool:
    """Whether a thing is exactly one of some types."""
    return kind_of(thing) in kinds
