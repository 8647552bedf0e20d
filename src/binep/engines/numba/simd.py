"""Vector instructions for Numba: what its loops do not turn into SIMD by themselves.

Each is an intrinsic of a few lines of LLVM vector code on 64 neurons (one word of bits) or eight
words at a time; LLVM fits it to the machine (AVX-512, AVX2, NEON). No operation carries a fast-math
flag, so that every one rounds on its own, as the reference does.
"""

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

intrinsic: Any = extending.intrinsic

_LANES = 16
_WORD = ir.IntType(64)
_WORDS8 = ir.VectorType(_WORD, 8)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_INTS = ir.VectorType(ir.IntType(32), _LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), 8)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any, to: Any) -> Any:
    """The address of `array[index]` as a pointer to `to`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


def _splat(builder: Any, scalar: Any, kind: Any) -> Any:
    """A vector with the same number in all lanes."""
    first = builder.insert_element(
        ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
    )
    order = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), order)


def _mask(builder: Any, bits: Any) -> Any:
    """The bits of an integer as one boolean a lane, lowest first."""
    return builder.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width))


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are 1."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), code


@intrinsic
def lowest(typing_context: Any, word: Any) -> Any:
    """The position of the lowest bit that is 1, of a word that is not 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`, which will be changed soon."""
    signature = types.void(array, index)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        spot = _place(context, builder, signature.args[0], args[0], args[1], byte)
        kind = ir.FunctionType(ir.VoidType(), [spot.type, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To write, into the first level, as data.
        builder.call(ask, [spot, *(ir.Constant(number, n) for n in (1, 3, 1))])
        return context.get_dummy_value()

    return signature, code


@intrinsic
def add_eight_rows(
    typing_context: Any,
    planes: Any,
    at: Any,
    stride: Any,
    eights: Any,
    matrix: Any,
    rows: Any,
    inverted: Any,
) -> Any:
    """Add eight rows of bits to a counter for each column, 512 columns at once.

    The counters stand upright: bit k of all of them is `planes[at + k stride : ... + 8]`, k < 3.
    Carry-save adders (Harley-Seal) take in the rows `matrix[rows[i] : rows[i] + 8] ^ inverted[i]`;
    what exceeds three bits, worth eight, goes to `planes[eights : eights + 8]`.
    """
    signature = types.void(planes, at, stride, eights, matrix, rows, inverted)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        planes_type, _, _, _, matrix_type, _, _ = signature.args
        planes, at, stride, eights, matrix, rows, inverted = args

        def plane(index: Any) -> Any:
            return _place(context, builder, planes_type, planes, index, _WORDS8)

        def adder(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
            """One full adder a bit: sum and carry of three."""
            half = builder.xor(a, b)
            carry = builder.or_(builder.and_(a, b), builder.and_(half, c))
            return builder.xor(half, c), carry

        spots = [
            plane(at),
            plane(builder.add(at, stride)),
            plane(builder.add(at, builder.add(stride, stride))),
        ]
        ones, twos, fours = (builder.load(spot, align=8) for spot in spots)
        taken = []
        for n in range(8):
            row = builder.extract_value(rows, n)
            bits = builder.load(
                _place(context, builder, matrix_type, matrix, row, _WORDS8), align=8
            )
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
        builder.store(eight, plane(eights), align=8)
        return context.get_dummy_value()

    return signature, code


@intrinsic
def expand(
    typing_context: Any,
    planes: Any,
    at: Any,
    stride: Any,
    levels: Any,
    counts: Any,
    index: Any,
    offset: Any,
) -> Any:
    """Read 64 upright counters: `counts[index + j] += offset + sum_k 2^k bit_j(planes_k)`.

    `planes_k` is the word `planes[at + k stride]`, k < levels; counts are int32.
    """
    signature = types.void(planes, at, stride, levels, counts, index, offset)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        planes_type, _, _, _, counts_type, _, _ = signature.args
        planes, at, stride, levels, counts, index, offset = args
        halfword = ir.IntType(_LANES)
        offset = _splat(builder, builder.trunc(offset, ir.IntType(32)), _INTS)
        spots, totals = [], []
        for n in range(0, 64, _LANES):
            where = builder.add(index, ir.Constant(index.type, n))
            spots.append(_place(context, builder, counts_type, counts, where, _INTS))
            totals.append(cgutils.alloca_once(builder, _INTS))
            old = builder.load(spots[-1], align=4)
            builder.store(builder.add(old, offset), totals[-1])
        with cgutils.for_range(builder, levels) as loop:
            where = builder.add(at, builder.mul(loop.index, stride))
            word = _place(context, builder, planes_type, planes, where, halfword)
            one = ir.Constant(ir.IntType(32), 1)
            worth = builder.shl(one, builder.trunc(loop.index, ir.IntType(32)))
            worth = _splat(builder, worth, _INTS)
            for n, total in enumerate(totals):
                part = builder.gep(word, [ir.Constant(ir.IntType(32), n)])
                bits = _mask(builder, builder.load(part, align=2))
                add = builder.select(bits, worth, ir.Constant(_INTS, [0] * _LANES))
                builder.store(builder.add(builder.load(total), add), total)
        for spot, total in zip(spots, totals, strict=True):
            builder.store(builder.load(total), spot, align=4)
        return context.get_dummy_value()

    return signature, code


@intrinsic
def add_where(
    typing_context: Any,
    sums: Any,
    index: Any,
    matrix: Any,
    word: Any,
    rows: Any,
    values: Any,
    count: Any,
) -> Any:
    """`sums[index + j] += values[n]` where bit j of `matrix[rows[n] + word]` is 1, n < count.

    For 64 sums, j < 64, in float64; they stay in registers meanwhile.
    """
    signature = types.void(sums, index, matrix, word, rows, values, count)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums_type, _, matrix_type, _, rows_type, values_type, _ = signature.args
        sums, index, matrix, word, rows, values, count = args
        zero = ir.Constant(_DOUBLES, [0.0] * 8)
        spots, totals = [], []
        for n in range(0, 64, 8):
            where = builder.add(index, ir.Constant(index.type, n))
            spots.append(_place(context, builder, sums_type, sums, where, _DOUBLES))
            totals.append(cgutils.alloca_once_value(builder, builder.load(spots[-1], align=8)))
        with cgutils.for_range(builder, count) as loop:
            row = builder.load(_place(context, builder, rows_type, rows, loop.index, _WORD))
            spot = _place(context, builder, matrix_type, matrix, builder.add(row, word), _WORD)
            bits = _mask(builder, builder.load(spot))
            spot = _place(context, builder, values_type, values, loop.index, ir.DoubleType())
            value = _splat(builder, builder.load(spot), _DOUBLES)
            for n, total in enumerate(totals):
                order = ir.Constant(ir.VectorType(ir.IntType(32), 8), list(range(8 * n, 8 * n + 8)))
                eight = builder.shuffle_vector(bits, bits, order)
                add = builder.select(eight, value, zero)
                builder.store(builder.fadd(builder.load(total), add), total)
        for spot, total in zip(spots, totals, strict=True):
            builder.store(builder.load(total), spot, align=8)
        return context.get_dummy_value()

    return signature, code


def _clamped(builder: Any, new: Any) -> Any:
    """States that are kept within [0, 1]."""
    zero, one = (ir.Constant(_FLOATS, [x] * _LANES) for x in (0.0, 1.0))
    new = builder.select(builder.fcmp_ordered(">", new, zero), new, zero)
    return builder.select(builder.fcmp_ordered("<", new, one), new, one)


def _advance(nudged: bool, windowed: bool) -> Any:
    """Code of the intrinsics `advance_*(s, i, out, j, drive, k, keep, take, threshold, ...)`.

    One step of 64 neurons, `out[j:] = clamp(keep s[i:] + take (rho'(s) drive[k:] + nudge), 0, 1)`,
    with every operation rounded on its own. Returns the new bits and whether any state changed.

    Args:
        nudged: with the arguments `pull, target, n, live` and
            `nudge = pull[n:] + live (target[n:] - s)`.
        windowed: with the arguments `sigma, slope` and `rho' = slope` where `|s - threshold| <=
            sigma`, else 0; otherwise `rho' = 1`.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        _, i, _, j, _, k, keep, take, threshold = args[:9]

        def lanes(position: int, index: Any, n: int) -> Any:
            where = builder.add(index, ir.Constant(index.type, n))
            return _place(context, builder, kinds[position], args[position], where, _FLOATS)

        def scalar(value: Any) -> Any:
            return _splat(builder, value, _FLOATS)

        zero = ir.Constant(_FLOATS, [0.0] * _LANES)
        keep, take, threshold = scalar(keep), scalar(take), scalar(threshold)
        bits, moved = ir.Constant(_WORD, 0), ir.Constant(ir.IntType(_LANES), 0)
        for n in range(0, 64, _LANES):
            old = builder.load(lanes(0, i, n), align=4)
            force = builder.load(lanes(4, k, n), align=4)
            if windowed:
                sigma, slope = scalar(args[9]), scalar(args[10])
                away = builder.fsub(old, threshold)
                distance = builder.select(
                    builder.fcmp_ordered("<", away, zero), builder.fneg(away), away
                )
                listening = builder.select(builder.fcmp_ordered("<=", distance, sigma), slope, zero)
                force = builder.fmul(listening, force)
            if nudged:
                at, live = args[13], scalar(args[14])
                pull = builder.load(lanes(11, at, n), align=4)
                target = builder.load(lanes(12, at, n), align=4)
                nudge = builder.fadd(pull, builder.fmul(live, builder.fsub(target, old)))
                force = builder.fadd(force, nudge)
            new = builder.fadd(builder.fmul(keep, old), builder.fmul(take, force))
            new = _clamped(builder, new)
            builder.store(new, lanes(2, j, n), align=4)
            sixteen = builder.bitcast(
                builder.fcmp_ordered(">=", new, threshold), ir.IntType(_LANES)
            )
            shifted = builder.shl(builder.zext(sixteen, _WORD), ir.Constant(_WORD, n))
            bits = builder.or_(bits, shifted)
            changes = builder.fcmp_unordered("!=", new, old)
            moved = builder.or_(moved, builder.bitcast(changes, ir.IntType(_LANES)))
        return context.make_tuple(
            builder, signature.return_type, [bits, builder.zext(moved, _WORD)]
        )

    return code


_ADVANCED = types.UniTuple(types.uint64, 2)


@intrinsic
def advance_free(
    typing_context: Any,
    s: Any,
    i: Any,
    out: Any,
    j: Any,
    drive: Any,
    k: Any,
    keep: Any,
    take: Any,
    threshold: Any,
) -> Any:
    """`_advance` of neurons that always listen fully: `rho' = 1`."""
    signature = _ADVANCED(s, i, out, j, drive, k, keep, take, threshold)
    return signature, _advance(nudged=False, windowed=False)


@intrinsic
def advance_windowed(
    typing_context: Any,
    s: Any,
    i: Any,
    out: Any,
    j: Any,
    drive: Any,
    k: Any,
    keep: Any,
    take: Any,
    threshold: Any,
    sigma: Any,
    slope: Any,
) -> Any:
    """`_advance` of neurons that listen near their threshold."""
    signature = _ADVANCED(s, i, out, j, drive, k, keep, take, threshold, sigma, slope)
    return signature, _advance(nudged=False, windowed=True)


@intrinsic
def advance_nudged(
    typing_context: Any,
    s: Any,
    i: Any,
    out: Any,
    j: Any,
    drive: Any,
    k: Any,
    keep: Any,
    take: Any,
    threshold: Any,
    sigma: Any,
    slope: Any,
    pull: Any,
    target: Any,
    n: Any,
    live: Any,
) -> Any:
    """`_advance` of output neurons under a nudge."""
    motion = (keep, take, threshold, sigma, slope)
    signature = _ADVANCED(s, i, out, j, drive, k, *motion, pull, target, n, live)
    return signature, _advance(nudged=True, windowed=True)


@intrinsic
def inclined(
    typing_context: Any, state: Any, drive: Any, k: Any, keep: Any, take: Any, threshold: Any
) -> Any:
    """The bits that 64 neurons, all in one `state`, have after a step, `rho' = 1`."""
    signature = types.uint64(state, drive, k, keep, take, threshold)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        state, drive, k, keep, take, threshold = args
        state, keep, take, threshold = (
            _splat(builder, number, _FLOATS) for number in (state, keep, take, threshold)
        )
        bits = ir.Constant(_WORD, 0)
        for n in range(0, 64, _LANES):
            where = builder.add(k, ir.Constant(k.type, n))
            spot = _place(context, builder, signature.args[1], drive, where, _FLOATS)
            pull = builder.fmul(take, builder.load(spot, align=4))
            new = _clamped(builder, builder.fadd(builder.fmul(keep, state), pull))
            sixteen = builder.bitcast(
                builder.fcmp_ordered(">=", new, threshold), ir.IntType(_LANES)
            )
            shifted = builder.shl(builder.zext(sixteen, _WORD), ir.Constant(_WORD, n))
            bits = builder.or_(bits, shifted)
        return bits

    return signature, code


@intrinsic
def advance_many(
    typing_context: Any, s: Any, i: Any, drive: Any, steps: Any, keep: Any, take: Any
) -> Any:
    """So many steps of 64 neurons at a constant drive, in registers, `rho' = 1`."""
    signature = types.void(s, i, drive, steps, keep, take)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        s, i, drive, steps, keep, take = args
        keep, take = _splat(builder, keep, _FLOATS), _splat(builder, take, _FLOATS)
        spots, states, pulls = [], [], []
        for n in range(0, 64, _LANES):
            where = builder.add(i, ir.Constant(i.type, n))
            spots.append(_place(context, builder, signature.args[0], s, where, _FLOATS))
            states.append(cgutils.alloca_once_value(builder, builder.load(spots[-1], align=4)))
            force = _place(context, builder, signature.args[2], drive, where, _FLOATS)
            pulls.append(builder.fmul(take, builder.load(force, align=4)))
        with cgutils.for_range(builder, steps) as loop:
            moved = ir.Constant(ir.IntType(_LANES), 0)
            for state, pull in zip(states, pulls, strict=True):
                old = builder.load(state)
                new = _clamped(builder, builder.fadd(builder.fmul(keep, old), pull))
                builder.store(new, state)
                changes = builder.fcmp_unordered("!=", new, old)
                moved = builder.or_(moved, builder.bitcast(changes, ir.IntType(_LANES)))
            rests = builder.icmp_unsigned("==", moved, ir.Constant(ir.IntType(_LANES), 0))
            with builder.if_then(rests):
                loop.do_break()
        for spot, state in zip(spots, states, strict=True):
            builder.store(builder.load(state), spot, align=4)
        return context.get_dummy_value()

    return signature, code


@intrinsic
def largest_change(typing_context: Any, s: Any, i: Any, t: Any, j: Any) -> Any:
    """`max |s[i + n] - t[j + n]|` over 64 neurons."""
    signature = types.float32(s, i, t, j)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        s, i, t, j = args
        zero = ir.Constant(_FLOATS, [0.0] * _LANES)
        largest = zero
        for n in range(0, 64, _LANES):
            here, there = (
                builder.load(
                    _place(
                        context,
                        builder,
                        signature.args[position],
                        array,
                        builder.add(index, ir.Constant(index.type, n)),
                        _FLOATS,
                    ),
                    align=4,
                )
                for position, array, index in ((0, s, i), (2, t, j))
            )
            change = builder.fsub(here, there)
            change = builder.select(
                builder.fcmp_ordered("<", change, zero), builder.fneg(change), change
            )
            larger = builder.fcmp_ordered(">", change, largest)
            largest = builder.select(larger, change, largest)
        width = _LANES
        while width > 1:
            width //= 2
            order = [(n + width) % _LANES for n in range(_LANES)]
            turned = builder.shuffle_vector(
                largest, zero, ir.Constant(ir.VectorType(ir.IntType(32), _LANES), order)
            )
            largest = builder.select(builder.fcmp_ordered(">", turned, largest), turned, largest)
        return builder.extract_element(largest, ir.Constant(ir.IntType(32), 0))

    return signature, code
