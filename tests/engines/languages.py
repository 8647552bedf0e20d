"""The rules as every language has them, called with arrays of float32: `send`, `step`, ...

An adapter calls the rules of its language and adds nothing of its own; a rule that it does not have
is not there. `REFERENCE` is torch, which is the definition.
"""

import ctypes
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from binep import Bop, Dense, HardSigmoid, Heaviside, Network
from binep.core.dynamics import Dynamics, EnergyBased, Hopfield, Prototypical
from binep.core.neurons import Neuron
from binep.core.plan import ContrastPlan, PhasePlan
from binep.deploy import c_program, rules
from binep.deploy.export import DYNAMICS
from binep.deploy.learning import FixedRule, Rule
from binep.deploy.stored import StoredCoupling, StoredNetwork

Array = Any
# Of the integers: few, so that floors of all kinds occur.
STATE_BITS = 4


class Reference:
    """torch, by the classes that training uses."""

    def send(self, neuron: Neuron, s: Array) -> Array:
        return neuron(torch.from_numpy(s)).float().numpy()

    def step(
        self, neuron: Neuron, dynamics: Dynamics, s: Array, drive: Array, pull: Array | None
    ) -> Array:
        force = None if pull is None else torch.from_numpy(pull)
        return dynamics.advance(neuron, torch.from_numpy(s), torch.from_numpy(drive), force).numpy()

    def nudge(self, beta: float, target: Array, s: Array) -> Array:
        network = Network((1,), [Dense(1, 1)], classes=1)
        return (beta * network.pull([torch.from_numpy(s)], torch.from_numpy(target))).numpy()

    def nudge_bit(self, beta: float, target: Array) -> Array:
        network = Network((1,), [Dense(1, 1)], dynamics="hopfield", classes=1)
        wanted = torch.from_numpy(target)
        return (beta * network.pull([torch.zeros_like(wanted)], wanted)).numpy()

    def handicap(self, margin: float, target: Array) -> Array:
        return ContrastPlan((), 1, 0, 1.0, margin).handicap(torch.from_numpy(target)).numpy()

    def flip(self, w: Array, m: Array, tau: float) -> Array:
        # With gamma = 1 the momentum after the first gradient is that gradient.
        weight = torch.nn.Parameter(torch.from_numpy(w.copy()))
        weight.grad = torch.from_numpy(m)
        Bop([weight], gamma=1.0, tau=tau).step()
        return weight.detach().numpy() != w

    def winner(self, pools: Array) -> Array:
        """Which of 4 numbers, (pools, 4), wins a pool."""
        maps = torch.from_numpy(pools).reshape(-1, 1, 2, 2)
        _, where = torch.nn.functional.max_pool2d(maps, 2, return_indices=True)
        return where.flatten().numpy()


class Numpy:
    """binep/deploy/rules.py"""

    def runs(self, neuron: Neuron, dynamics: Dynamics) -> bool:
        return not isinstance(dynamics, Hopfield)

    def send(self, neuron: Neuron, s: Array) -> Array:
        if isinstance(neuron, Heaviside):
            return rules.fires(s, neuron.threshold).astype(np.float32)
        return rules.clamp(s)

    def step(
        self, neuron: Neuron, dynamics: Dynamics, s: Array, drive: Array, pull: Array | None
    ) -> Array:
        assert pull is None
        if not isinstance(dynamics, EnergyBased):
            return rules.clamp(drive)
        if isinstance(neuron, Heaviside):
            slope = rules.slope(s, neuron.threshold, neuron.sigma)
        else:
            slope = rules.slope_of_real(s)
        return rules.step(s, drive, slope, dynamics.dt)

    def flip(self, w: Array, m: Array, tau: float) -> Array:
        return rules.flip(m, w, tau)

    def winner(self, pools: Array) -> Array:
        return rules.winner(pools)

    def whole_step(self, s: Array, drive: Array, pull: Array) -> Array:
        return rules.whole_step(s, drive, pull, 1 << STATE_BITS)

    def whole_nudge(self, beta: int, target: Array, s: Array) -> Array:
        return rules.whole_nudge(beta, target, s)

    def whole_handicap(self, margin: int, target: Array) -> Array:
        return rules.whole_handicap(margin, target, 1 << STATE_BITS)

    def whole_momentum(self, m: Array, gradient: Array, most: int) -> Array:
        return rules.whole_momentum(m, gradient, most)

    def whole_flip(self, w: Array, m: Array, tau: int) -> Array:
        return rules.flip(m, w, tau)


_DRIVER = """
#include "rules.h"
#define EACH for (int32_t k = 0; k < n; k++)
void winner(int32_t n, const float *pools, int64_t *out) {
    EACH {
        float best = 0;
        for (int64_t j = 0; j < 4; j++)
            if (RULE_WINS(j == 0, pools[4 * k + j], best)) {
                best = pools[4 * k + j];
                out[k] = j;
            }
    }
}
#if BINEP_INTEGERS
void step(int32_t n, const int64_t *s, const int64_t *drive, const int64_t *pull, int64_t *out) {
    EACH out[k] = rule_step((int32_t)s[k], rule_drive(drive[k], pull[k]));
}
void nudge(int32_t n, int64_t beta, const int64_t *target, const int64_t *s, int64_t *out) {
    EACH out[k] = rule_nudge(beta, (int32_t)target[k], (int32_t)s[k]);
}
void handicap(int32_t n, int64_t margin, const int64_t *target, int64_t *out) {
    EACH out[k] = rule_handicap(margin, (int32_t)target[k]);
}
void momentum(int32_t n, const int64_t *m, const int64_t *g, int64_t most, int64_t *out) {
    EACH out[k] = rule_momentum((int32_t)m[k], (int32_t)g[k], (int32_t)most);
}
void flip(int32_t n, const int64_t *w, const int64_t *m, int64_t tau, int64_t *out) {
    EACH out[k] = rule_flip((int32_t)m[k], w[k] > 0, (int32_t)tau);
}
#else
void send(int32_t n, const float *s, float *out) {
    EACH out[k] = rule_activity(s[k]);
}
void step(int32_t n, const float *s, const float *drive, float *out) {
    EACH out[k] = rule_step(s[k], drive[k]);
}
#endif
"""


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


class C:
    """binep/deploy/c/rules.h, with the constants that an export of such a network has."""

    def runs(self, neuron: Neuron, dynamics: Dynamics) -> bool:
        return True

    def send(self, neuron: Neuron, s: Array) -> Array:
        dynamics = EnergyBased(0.5) if isinstance(neuron, Heaviside) else Prototypical(True)
        return _call(_compiled(neuron, dynamics).send, np.empty_like(s), len(s), s)

    def step(
        self, neuron: Neuron, dynamics: Dynamics, s: Array, drive: Array, pull: Array | None
    ) -> Array:
        assert pull is None
        return _call(_compiled(neuron, dynamics).step, np.empty_like(s), len(s), s, drive)

    def winner(self, pools: Array) -> Array:
        out = np.empty(len(pools), np.int64)
        return _call(_compiled(HardSigmoid(), Prototypical(True)).winner, out, len(pools), pools)

    def whole_step(self, s: Array, drive: Array, pull: Array) -> Array:
        return _call(_integers().step, np.empty_like(s), len(s), s, drive, pull)

    def whole_nudge(self, beta: int, target: Array, s: Array) -> Array:
        return _call(_integers().nudge, np.empty_like(s), len(s), beta, target, s)

    def whole_handicap(self, margin: int, target: Array) -> Array:
        return _call(_integers().handicap, np.empty_like(target), len(target), margin, target)

    def whole_momentum(self, m: Array, gradient: Array, most: int) -> Array:
        return _call(_integers().momentum, np.empty_like(m), len(m), m, gradient, most)

    def whole_flip(self, w: Array, m: Array, tau: int) -> Array:
        return _call(_integers().flip, np.empty_like(m), len(m), w, m, tau) != 0


def _call(function: Any, out: Array, *words: Any) -> Array:
    """Call a function of the driver; integers other than the count are of 64 bits."""
    count, *rest = words
    kept = [np.ascontiguousarray(each) if isinstance(each, np.ndarray) else each for each in rest]
    pointers = [
        each.ctypes.data_as(ctypes.c_void_p)
        if isinstance(each, np.ndarray)
        else ctypes.c_int64(each)
        for each in (*kept, out)
    ]
    function(ctypes.c_int32(count), *pointers)
    return out


@cache
def _compiled(neuron: Neuron, dynamics: Dynamics) -> ctypes.CDLL:
    binary = isinstance(neuron, Heaviside)
    return _build(
        activations="binary" if binary else "real",
        threshold=neuron.threshold if isinstance(neuron, Heaviside) else 0.5,
        sigma=neuron.sigma if isinstance(neuron, Heaviside) else 0.5,
        dynamics=DYNAMICS[type(dynamics)],
        updates="alternating" if isinstance(dynamics, Hopfield) else "simultaneous",
        dt=dynamics.dt if isinstance(dynamics, EnergyBased) else 1.0,
        # Otherwise it would run in integers.
        mean=(0.0,),
        std=(1.0,),
    )


@cache
def _integers() -> ctypes.CDLL:
    plan = ContrastPlan((PhasePlan(1), PhasePlan(1, 0, 0.5)), 1, 0, 0.5)
    rule = FixedRule(Rule(plan, False, (1e-2,), (1e-3,), (1e-3,), 1))
    system = {"activations": "binary", "threshold": 0.5, "sigma": 0.5, "dynamics": "energy"}
    return _build(rule, **system, dt=0.5)


def _build(learning: FixedRule | None = None, **system: Any) -> ctypes.CDLL:
    """An exported network's rules.h and network.h, with the driver as a library."""
    signs = np.ones((2, 2), np.int8)
    coupling = StoredCoupling("dense", 2, 2, signs=signs, scale=np.float32(1))
    network = StoredNetwork(
        input_shape=(2,),
        image_shape=(1, 1, 2),
        couplings=[coupling],
        initial_state=1.0,
        steps=1,
        cost="mse",
        classes=2,
        per_class=1,
        readout="average",
        **{"updates": "simultaneous", **system},
    )
    folder = Path(mkdtemp())
    images, labels = np.zeros((1, 1, 1, 2), np.uint8), np.zeros(1, int)
    c_program.write(network, folder, images, labels, state_bits=STATE_BITS, learning=learning)
    (folder / "driver.c").write_text(_DRIVER)
    options = ["-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [str(compiler()), *options, "-shared", "-fPIC", "-o", "rules.so", "driver.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "rules.so"))
    shutil.rmtree(folder)
    return library


# --- engines ------------------------------------------------------------------------------------


@cache
def _compiled_by_numba(rule: str) -> Any:
    import numba

    from binep.engines.numba import rules

    return numba.vectorize(getattr(rules, rule))


class Numba:
    """binep/engines/numba/rules.py"""

    def runs(self, neuron: Neuron, dynamics: Dynamics) -> bool:
        return isinstance(neuron, Heaviside) == isinstance(dynamics, EnergyBased | Hopfield)

    def send(self, neuron: Neuron, s: Array) -> Array:
        if isinstance(neuron, Heaviside):
            return _compiled_by_numba("fires")(s, np.float32(neuron.threshold)).astype(np.float32)
        return _compiled_by_numba("sent")(s, False)

    def step(
        self, neuron: Neuron, dynamics: Dynamics, s: Array, drive: Array, pull: Array | None
    ) -> Array:
        if isinstance(dynamics, Prototypical):
            if pull is None:
                return _compiled_by_numba("clamp")(drive)
            return _compiled_by_numba("step_prototypical")(drive, pull, dynamics.clamp_nudged)
        if isinstance(dynamics, Hopfield):
            return drive if pull is None else _compiled_by_numba("step_bit")(drive, pull)
        assert isinstance(dynamics, EnergyBased) and isinstance(neuron, Heaviside)
        window = neuron.threshold, neuron.sigma, 1 / (2 * neuron.sigma)
        force = _compiled_by_numba("slope")(s, *map(np.float32, window)) * drive
        force = force if pull is None else force + pull
        motion = np.float32(1 - dynamics.dt), np.float32(dynamics.dt)
        return _compiled_by_numba("step_energy")(s, force, *motion)

    def nudge(self, beta: float, target: Array, s: Array) -> Array:
        return _compiled_by_numba("nudge")(s, target, np.float32(beta))

    def nudge_bit(self, beta: float, target: Array) -> Array:
        return _compiled_by_numba("nudge_bit")(target, np.float32(beta))

    def handicap(self, margin: float, target: Array) -> Array:
        return _compiled_by_numba("handicap")(target, np.float32(margin))

    def flip(self, w: Array, m: Array, tau: float) -> Array:
        return _compiled_by_numba("flip")(w, m, np.float32(tau))

    def winner(self, pools: Array) -> Array:
        best, where = pools[:, 0].copy(), np.zeros(len(pools), np.int64)
        for j in range(1, pools.shape[1]):
            won = _compiled_by_numba("wins")(pools[:, j], best)
            best[won], where[won] = pools[won, j], j
        return where


class Triton:
    """binep/engines/cuda/rules.py, on the GPU or in Triton's interpreter."""

    def runs(self, neuron: Neuron, dynamics: Dynamics) -> bool:
        return not isinstance(dynamics, EnergyBased) or dynamics.dt == 0.5

    def send(self, neuron: Neuron, s: Array) -> Array:
        return self._launch("send", s, neuron=self._neuron(neuron, Prototypical(True)))

    def step(
        self, neuron: Neuron, dynamics: Dynamics, s: Array, drive: Array, pull: Array | None
    ) -> Array:
        return self._launch("step", s, drive, pull, neuron=self._neuron(neuron, dynamics))

    def nudge(self, beta: float, target: Array, s: Array) -> Array:
        return self._launch("nudge", s, target, beta)

    def nudge_bit(self, beta: float, target: Array) -> Array:
        return self._launch("nudge_bit", target, beta)

    def flip(self, w: Array, m: Array, tau: float) -> Array:
        return self._launch("flip", w, m, tau) > 0

    def _neuron(self, neuron: Neuron, dynamics: Dynamics) -> Any:
        from binep.engines.cuda.rules import Neuron as Fields

        network = Network((1,), [Dense(1, 1)], neuron, "energy", classes=1)
        network.dynamics = dynamics
        return Fields.of(network)

    def _launch(self, name: str, *values: Any, **options: Any) -> Array:
        """Run a kernel on arrays and numbers, of which the first is an array."""
        import triton
        import triton_kernels

        device = "cuda" if torch.cuda.is_available() else "cpu"
        given = [
            torch.from_numpy(each).to(device) if isinstance(each, np.ndarray) else each
            for each in values
        ]
        out, n = torch.empty_like(given[0]), len(values[0])
        options |= {"BLOCK": triton.next_power_of_2(n), "enable_fp_fusion": False}
        getattr(triton_kernels, name)[(1,)](*given, out, n, **options)
        return out.cpu().numpy()


REFERENCE = Reference()
LANGUAGES: dict[str, Any] = {
    "numpy": Numpy(),
    "C": C(),
    "Numba": Numba(),
    "Triton": Triton(),
}


def missing(language: str) -> str | None:
    """What keeps a language from being tried here."""
    if language == "C":
        return None if compiler() else "no C compiler: neither gcc nor cc found"
    module = language.lower()
    return None if find_spec(module) else f"{module} is not installed"
