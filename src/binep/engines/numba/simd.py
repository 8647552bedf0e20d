"""Vector instructions for Numba, where its loops are not vectorised by themselves.

Each is an intrinsic of a few lines of LLVM vector code on 64 neurons (one word of bits) or eight
words at a time; LLVM fits it to the machine (AVX-512, AVX2, NEON). No operation carries a fast-math
flag, so that every one rounds on its own, as the reference does.
"""

from functools import partial
from typing import Any, cast

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from binep.engines.numba import rules
from binep.engines.numba.rules import where

intrinsic: Any = extending.intrinsic

_LANES = 16
_WORD, _INT, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_WORDS8 = ir.VectorType(_WORD, 8)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_INTS = ir.VectorType(_INT, _LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), 8)


def _place(context, builder, kind, array, index, to):
    """The address of `array[index]` as a pointer to `to`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


def _places(context, builder, kind, array, index, to, every=_LANES):
    """The addresses of `array[index + n]`, n < 64, for every so many entries."""
    return [
        _place(context, builder, kind, array, builder.add(index, ir.Constant(index.type, n)), to)
        for n in range(0, 64, every)
    ]


def _splat(builder, scalar, kind):
    """A vector with the same number in all lanes."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_INT, 0))
    order = ir.Constant(ir.VectorType(_INT, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), order)


def _mask(builder, bits):
    """The bits of an integer as one boolean per lane, lowest first."""
    return builder.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width))


def _operator(name, swapped=False):
    return lambda self, other: self.with_(getattr(self.builder, name), other, swapped)


def _comparison(how):
    return lambda self, other: self.with_(partial(self.builder.fcmp_ordered, how), other)


class _Floats:
    """Sixteen float32 with the operators that `rules` are written in."""

    __array_ufunc__ = None

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def of(self, other):
        """Another operand: sixteen numbers, or one for all lanes."""
        if isinstance(other, _Floats):
            return other
        return _Floats(self.builder, ir.Constant(_FLOATS, [float(other)] * _LANES))

    def with_(self, code, other, swapped=False):
        values = self.value, self.of(other).value
        return _Floats(self.builder, code(*(reversed(values) if swapped else values)))

    __add__, __sub__, __mul__ = _operator("fadd"), _operator("fsub"), _operator("fmul")
    __rsub__ = _operator("fsub", swapped=True)
    __lt__, __le__, __gt__, __ge__ = (_comparison(how) for how in ("<", "<=", ">", ">="))

    def __abs__(self):
        return where(self < 0, _Floats(self.builder, self.builder.fneg(self.value)), self)

    def differs(self, other):
        """Whether lanes differ, one bit per lane."""
        return _bits(self.with_(partial(self.builder.fcmp_unordered, "!="), other))

    def select(self, yes, no):
        """`yes` where this comparison holds, else `no`: what `rules.where` asks for."""
        some = yes if isinstance(yes, _Floats) else no
        chosen = self.builder.select(self.value, some.of(yes).value, some.of(no).value)
        return _Floats(self.builder, chosen)


def _bits(comparison):
    """The outcome of a comparison of sixteen lanes as an integer, lowest lane first."""
    return comparison.builder.bitcast(comparison.value, ir.IntType(_LANES))


def _load(builder, spot):
    return _Floats(builder, builder.load(spot, align=4))


def _word(builder, sixteens):
    """One word of four times sixteen bits."""
    word = ir.Constant(_WORD, 0)
    for n, bits in enumerate(sixteens):
        shifted = builder.shl(builder.zext(bits, _WORD), ir.Constant(_WORD, _LANES * n))
        word = builder.or_(word, shifted)
    return word


def _unpack(builder, numbers):
    """A tuple of float32 as vectors."""
    numbers = cgutils.unpack_tuple(builder, numbers)
    return [_Floats(builder, _splat(builder, number, _FLOATS)) for number in numbers]


@intrinsic
def popcount(typing_context, word):
    """How many bits of a word are 1."""
    return types.uint64(types.uint64), lambda context, builder, sig, args: builder.ctpop(args[0])


@intrinsic
def lowest(typing_context, word):
    """The position of the lowest bit that is 1, of a word that is not 0."""

    def code(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch the cache line of `array[index]`, which will be changed soon."""

    def code(context, builder, signature, args):
        array, index = args
        spot = _place(context, builder, signature.args[0], array, index, _BYTE)
        kind = ir.FunctionType(ir.VoidType(), [spot.type, _INT, _INT, _INT])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To write, into the first level, as data.
        builder.call(ask, [spot, *(ir.Constant(_INT, n) for n in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, index), code


# --- counting -----------------------------------------------------------------------------------


@intrinsic
def add_eight_rows(typing_context, planes, at, stride, eights, matrix, rows, word, inverted):
    """Add eight rows of bits to a counter for each column, 512 columns at once.

    The counters stand upright: bit k of all of them is `planes[at + k stride : ... + 8]`, k < 3.
    Carry-save adders (Harley-Seal) take in eight words from `matrix[rows[i] + word]` on, `^
    inverted[i]`, i < 8; what exceeds three bits, worth eight, goes to `planes[eights...]`.
    """

    def code(context, builder, signature, args):
        planes, at, stride, eights, matrix, rows, word, inverted = args

        def words(position, array, index):
            return _place(context, builder, signature.args[position], array, index, _WORDS8)

        def adder(a, b, c):
            """One full adder a bit: sum and carry of three."""
            half = builder.xor(a, b)
            carry = builder.or_(builder.and_(a, b), builder.and_(half, c))
            return builder.xor(half, c), carry

        spots = [words(0, planes, at)]
        for _ in range(2):
            at = builder.add(at, stride)
            spots.append(words(0, planes, at))
        ones, twos, fours = (builder.load(spot, align=8) for spot in spots)
        taken = []
        for n in range(8):
            row = builder.add(builder.extract_value(rows, n), word)
            bits = builder.load(words(4, matrix, row), align=8)
            flip = _splat(builder, builder.extract_value(inverted, n), _WORDS8)
            taken.append(builder.xor(bits, flip))
        carries = []
        for n in range(0, 8, 2):
            ones, carry = adder(ones, taken[n], taken[n + 1])
            carries.append(carry)
        twos, first = adder(twos, carries[0], carries[1])
        twos, second = adder(twos, carries[2], carries[3])
        fours, eight = adder(fours, first, second)
        for spot, value in zip(spots, (ones, twos, fours), strict=True):
            builder.store(value, spot, align=8)
        builder.store(eight, words(0, planes, eights), align=8)
        return context.get_dummy_value()

    return types.void(planes, at, stride, eights, matrix, rows, word, inverted), code


@intrinsic
def expand(typing_context, planes, at, stride, levels, counts, index, offset):
    """Read 64 upright counters: `counts[index + j] += offset + sum_k 2^k bit_j(planes_k)`.

    `planes_k` is the word `planes[at + k stride]`, k < levels; counts are int32.
    """

    def code(context, builder, signature, args):
        planes, at, stride, levels, counts, index, offset = args
        offset = _splat(builder, builder.trunc(offset, _INT), _INTS)
        spots = _places(context, builder, signature.args[4], counts, index, _INTS)
        totals = []
        for spot in spots:
            begin = builder.add(builder.load(spot, align=4), offset)
            totals.append(cgutils.alloca_once(builder, _INTS))
            builder.store(begin, totals[-1])
        with cgutils.for_range(builder, levels) as loop:
            level = builder.add(at, builder.mul(loop.index, stride))
            kind = signature.args[0]
            word = _place(context, builder, kind, planes, level, ir.IntType(_LANES))
            worth = builder.shl(ir.Constant(_INT, 1), builder.trunc(loop.index, _INT))
            worth = _splat(builder, worth, _INTS)
            for n, total in enumerate(totals):
                part = builder.gep(word, [ir.Constant(_INT, n)])
                bits = _mask(builder, builder.load(part, align=2))
                add = builder.select(bits, worth, ir.Constant(_INTS, [0] * _LANES))
                builder.store(builder.add(builder.load(total), add), total)
        for spot, total in zip(spots, totals, strict=True):
            builder.store(builder.load(total), spot, align=4)
        return context.get_dummy_value()

    return types.void(planes, at, stride, levels, counts, index, offset), code


@intrinsic
def add_where(typing_context, sums, index, matrix, word, rows, values, count):
    """`sums[index + j] += values[n]` where bit j of `matrix[rows[n] + word]` is 1, n < count.

    For 64 sums, j < 64, in float64; they stay in registers meanwhile.
    """

    def code(context, builder, signature, args):
        sums_kind, _, matrix_kind, _, rows_kind, values_kind, _ = signature.args
        sums, index, matrix, word, rows, values, count = args
        spots = _places(context, builder, sums_kind, sums, index, _DOUBLES, every=8)
        totals = [cgutils.alloca_once_value(builder, builder.load(spot, align=8)) for spot in spots]
        with cgutils.for_range(builder, count) as loop:
            row = builder.load(_place(context, builder, rows_kind, rows, loop.index, _WORD))
            spot = _place(context, builder, matrix_kind, matrix, builder.add(row, word), _WORD)
            bits = _mask(builder, builder.load(spot))
            spot = _place(context, builder, values_kind, values, loop.index, ir.DoubleType())
            value = _splat(builder, builder.load(spot), _DOUBLES)
            for n, total in enumerate(totals):
                order = ir.Constant(ir.VectorType(_INT, 8), list(range(8 * n, 8 * n + 8)))
                eight = builder.shuffle_vector(bits, bits, order)
                add = builder.select(eight, value, ir.Constant(_DOUBLES, [0.0] * 8))
                builder.store(builder.fadd(builder.load(total), add), total)
        for spot, total in zip(spots, totals, strict=True):
            builder.store(builder.load(total), spot, align=8)
        return context.get_dummy_value()

    return types.void(sums, index, matrix, word, rows, values, count), code


# --- stepping -----------------------------------------------------------------------------------


@intrinsic
def advance(typing_context, s, drive, j, motion, window, nudge):
    """`rules.step_energy` of the 64 neurons from j on, in place.

    Args:
        motion: keep, take, threshold.
        window: threshold, sigma, height of `rules.slope`; or empty, for neurons that always listen.
        nudge: start, target, n, beta, live of `rules.nudge`, start and target from their entry n
            on; or empty.
    Returns the new bits and whether any state changed.
    """

    def code(context, builder, signature, args):
        kinds = signature.args
        s, drive, j, motion, window, nudge = args
        keep, take, threshold = _unpack(builder, motion)
        states = _places(context, builder, kinds[0], s, j, _FLOATS)
        forces = _places(context, builder, kinds[1], drive, j, _FLOATS)
        starts: Any = [None] * 4
        targets, beta, live = starts, None, cast("Any", None)
        if len(kinds[5]):
            start, target, n, beta, live = cgutils.unpack_tuple(builder, nudge)
            starts = _places(context, builder, kinds[5][0], start, n, _FLOATS)
            targets = _places(context, builder, kinds[5][1], target, n, _FLOATS)
            beta, live = (_Floats(builder, _splat(builder, x, _FLOATS)) for x in (beta, live))
        fired, moved = [], ir.Constant(ir.IntType(_LANES), 0)
        for state, force, start, target in zip(states, forces, starts, targets, strict=True):
            old, force = _load(builder, state), _load(builder, force)
            if len(kinds[4]):
                force = rules.slope(old, *_unpack(builder, window)) * force
            if beta is not None:
                start, target = _load(builder, start), _load(builder, target)
                force = force + rules.nudge(where(live > 0, old, start), target, beta)
            new = rules.step_energy(old, force, keep, take)
            builder.store(new.value, state, align=4)
            fired.append(_bits(rules.fires(new, threshold)))
            moved = builder.or_(moved, new.differs(old))
        found = [_word(builder, fired), builder.zext(moved, _WORD)]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.uint64, 2)(s, drive, j, motion, window, nudge), code


def _drives(context, builder, kinds, side):
    """What comes from one side on 64 neurons, four times sixteen float32; see `decide`."""
    parts = cgutils.unpack_tuple(builder, side)
    if len(parts) == 2:
        spots = _places(context, builder, kinds[0], parts[0], parts[1], _FLOATS)
        return [_load(builder, spot) for spot in spots]
    counts, at, active, gain, *rest = parts
    active, gain = _splat(builder, active, _INTS), _Floats(builder, _splat(builder, gain, _FLOATS))
    found = []
    for spot in _places(context, builder, kinds[0], counts, at, _INTS):
        positive = builder.load(spot, align=4)
        sums = builder.sub(builder.add(positive, positive), active)
        found.append(gain * _Floats(builder, builder.sitofp(sums, _FLOATS)))
    if rest:
        spots = _places(context, builder, kinds[4], rest[0], rest[1], _FLOATS)
        found = [each + _load(builder, spot) for each, spot in zip(found, spots, strict=True)]
    return found


@intrinsic
def decide(typing_context, up, down, pull, threshold):
    """The bits that 64 neurons without an inner state choose: where `rules.step_bit` fires.

    Args:
        up, down: what comes from either side. As it is: array, from which entry on. Or as counts of
            positive synapses: `gain (2 count - active)`: counts, from where on, active, gain; with
            a bias as well: bias, from where on.
        pull: of the nudge, array, from which entry on; or empty.
    """

    def code(context, builder, signature, args):
        kinds = signature.args
        ups, downs = (_drives(context, builder, kinds[n], args[n]) for n in (0, 1))
        drives, limit = [a + b for a, b in zip(ups, downs, strict=True)], args[3]
        if len(kinds[2]):
            pulls = _drives(context, builder, kinds[2], args[2])
            drives = [rules.step_bit(a, b) for a, b in zip(drives, pulls, strict=True)]
        limit = _Floats(builder, _splat(builder, limit, _FLOATS))
        return _word(builder, [_bits(rules.fires(drive, limit)) for drive in drives])

    return types.uint64(up, down, pull, threshold), code


@intrinsic
def inclined(typing_context, state, drive, j, motion):
    """The bits that the 64 neurons from j on, all in one `state`, have after a step that they fully
    listen in; `motion` as for `advance`."""

    def code(context, builder, signature, args):
        state, drive, j, motion = args
        keep, take, threshold = _unpack(builder, motion)
        state, fired = _Floats(builder, _splat(builder, state, _FLOATS)), []
        for spot in _places(context, builder, signature.args[1], drive, j, _FLOATS):
            new = rules.step_energy(state, _load(builder, spot), keep, take)
            fired.append(_bits(rules.fires(new, threshold)))
        return _word(builder, fired)

    return types.uint64(state, drive, j, motion), code


@intrinsic
def advance_many(typing_context, s, drive, j, steps, motion):
    """So many steps of the 64 neurons from j on at a constant drive, in registers."""

    def code(context, builder, signature, args):
        s, drive, j, steps, motion = args
        keep, take, _ = _unpack(builder, motion)
        spots = _places(context, builder, signature.args[0], s, j, _FLOATS)
        states = [cgutils.alloca_once_value(builder, builder.load(spot, align=4)) for spot in spots]
        drives = _places(context, builder, signature.args[1], drive, j, _FLOATS)
        forces = [_load(builder, spot) for spot in drives]
        with cgutils.for_range(builder, steps) as loop:
            moved = ir.Constant(ir.IntType(_LANES), 0)
            for state, force in zip(states, forces, strict=True):
                old = _Floats(builder, builder.load(state))
                new = rules.step_energy(old, force, keep, take)
                builder.store(new.value, state)
                moved = builder.or_(moved, new.differs(old))
            rests = builder.icmp_unsigned("==", moved, ir.Constant(ir.IntType(_LANES), 0))
            with builder.if_then(rests):
                loop.do_break()
        for spot, state in zip(spots, states, strict=True):
            builder.store(builder.load(state), spot, align=4)
        return context.get_dummy_value()

    return types.void(s, drive, j, steps, motion), code


@intrinsic
def largest_change(typing_context, s, i, t, j):
    """`max |s[i + n] - t[j + n]|` over 64 neurons."""

    def code(context, builder, signature, args):
        s, i, t, j = args
        zero = ir.Constant(_FLOATS, [0.0] * _LANES)
        here = _places(context, builder, signature.args[0], s, i, _FLOATS)
        there = _places(context, builder, signature.args[2], t, j, _FLOATS)
        largest = _Floats(builder, zero)
        for a, b in zip(here, there, strict=True):
            change = abs(_load(builder, a) - _load(builder, b))
            largest = where(change > largest, change, largest)
        for width in (8, 4, 2, 1):
            order = [(n + width) % _LANES for n in range(_LANES)]
            order = ir.Constant(ir.VectorType(_INT, _LANES), order)
            turned = _Floats(builder, builder.shuffle_vector(largest.value, zero, order))
            largest = where(turned > largest, turned, largest)
        return builder.extract_element(largest.value, ir.Constant(_INT, 0))

    return types.float32(s, i, t, j), code
