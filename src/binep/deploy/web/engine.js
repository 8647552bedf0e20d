"use strict";

/* The compiled engine and one network in it. */
class Engine {
  static async open(wasm, file, facts) {
    const module = await WebAssembly.compile(wasm);
    const engine = new Engine(module, file, facts);
    await engine.reset();
    return engine;
  }

  constructor(module, file, facts) {
    this.module = module;
    this.file = file;
    this.facts = facts;
    this.counts = facts.layers.map((shape) => shape.reduce((a, b) => a * b, 1));
    this.pixels = facts.imageShape.reduce((a, b) => a * b, 1);
    this.betaScale = 1;
    this.tauScale = 1;
  }

  /* As it was exported: weights, biases, momenta, and the signs that learning draws. */
  async reset() {
    const instance = await WebAssembly.instantiate(this.module, {});
    this.call = instance.exports;
    const memory = instance.exports.memory;
    const base = Math.ceil(instance.exports.__heap_base.value / 16) * 16;
    const synapses = this.facts.couplings.reduce((sum, c) => sum + c.above * c.synapses, 0);
    const needed = base + this.file.length + 4 * synapses + this.pixels;
    const missing = Math.ceil((needed - memory.buffer.byteLength) / 65536);
    if (missing > 0) memory.grow(missing);
    this.memory = memory;
    new Uint8Array(memory.buffer).set(this.file, base);
    this.image = this.call.web_open(base, this.file.length);
    this.masks = null;
    this.learnt = 0;
    this.setBeta(this.betaScale);
    this.setTau(this.tauScale);
  }

  clamp(pixels) {
    new Uint8Array(this.memory.buffer).set(pixels, this.image);
    return this.image;
  }

  start(pixels) {
    this.call.web_start(this.clamp(pixels));
  }

  /* Whether another step can differ. */
  step() {
    return this.call.web_step() !== 0;
  }

  /* A step of the free phase; of learning's, if a class is given that is held back by a margin. */
  stepFree(label, isFirst) {
    if (label === null || !this.facts.plan.margin) return this.step();
    if (isFirst) this.call.web_pull(label, 0);
    return this.call.web_step_pulled() !== 0;
  }

  /* The nudged phase that a page shows: the first of the plan, towards a class. */
  get nudge() {
    const { phases, betas } = this.facts.plan;
    const which = phases.findIndex((phase, n) => betas[n] !== 0);
    const { steps, constant } = phases[which];
    return { steps, constant, beta: Math.round(Math.abs(betas[which]) * this.betaScale) };
  }

  stepTowards(label, isFirst) {
    const { beta, constant } = this.nudge;
    if (isFirst || !constant) this.call.web_pull(label, beta);
    return this.call.web_step_pulled() !== 0;
  }

  /* Of all neurons, between 0 and 1; of bits alone the bits and, of the outputs, the drives. */
  get states() {
    const count = this.counts.reduce((a, b) => a + b, 0);
    return new Float64Array(this.memory.buffer, this.call.web_states(), count).slice();
  }

  get energy() {
    return this.call.web_energy();
  }

  get flips() {
    return this.call.web_flips();
  }

  predict(pixels) {
    return this.call.web_predict(this.clamp(pixels));
  }

  learn(pixels, label) {
    this.call.web_learn(this.clamp(pixels), label);
    this.learnt++;
  }

  /* Rows of words, a bit per synapse, lowest first. */
  weights(n) {
    const { above, words } = this.facts.couplings[n];
    return new Uint32Array(this.memory.buffer, this.call.web_weights(n), above * words);
  }

  momenta(n) {
    const { above, synapses } = this.facts.couplings[n];
    return new Int32Array(this.memory.buffer, this.call.web_momenta(n), above * synapses);
  }

  biases(n) {
    const { above } = this.facts.couplings[n];
    return new BigInt64Array(this.memory.buffer, this.call.web_bias(n), above);
  }

  weight(n, row, synapse) {
    const word = this.weights(n)[row * this.facts.couplings[n].words + (synapse >> 5)];
    return (word >>> (synapse & 31)) & 1;
  }

  setBeta(scale) {
    this.betaScale = scale;
    this.facts.plan.betas.forEach((beta, n) => {
      this.call.web_set_beta(n, Math.round(beta * scale));
    });
  }

  flipAbove(n) {
    return Math.round(this.facts.flipAbove[n] * this.tauScale);
  }

  setTau(scale) {
    this.tauScale = scale;
    this.facts.flipAbove.forEach((_, n) => this.call.web_set_flip_above(n, this.flipAbove(n)));
  }

  /* Invert a share of all weights, always the same ones; those inverted before are put back. */
  setErrors(share) {
    this.invert();
    this.masks = share > 0 ? this.facts.couplings.map((c, n) => errorMask(c, n, share)) : null;
    this.invert();
    this.call.web_forget();
  }

  invert() {
    (this.masks || []).forEach((mask, n) => {
      const weights = this.weights(n);
      for (let w = 0; w < mask.length; w++) weights[w] ^= mask[w];
    });
  }

  /* What learning an image would do now: everything is put back afterwards. */
  preview(pixels, label) {
    const whole = new Uint8Array(this.memory.buffer);
    const kept = whole.slice();
    const couplings = this.facts.couplings.map((c, n) => n);
    const weights = couplings.map((n) => this.weights(n).slice());
    const momenta = couplings.map((n) => this.momenta(n).slice());
    this.call.web_learn(this.clamp(pixels), label);
    const found = couplings.map((n) => this.compare(n, weights[n], momenta[n]));
    whole.set(kept);
    return found;
  }

  /* Synapses pushed towards a flip, those that flipped, and how near the nearest other came. */
  compare(n, weights, momenta) {
    const { above, synapses, words } = this.facts.couplings[n];
    const nowWeights = this.weights(n);
    const nowMomenta = this.momenta(n);
    const threshold = Math.max(1, this.flipAbove(n));
    const pushed = new Uint32Array(synapses);
    const flipped = new Uint32Array(synapses);
    const rows = new Map();
    let pushes = 0;
    let flips = 0;
    let nearest = 0;
    for (let i = 0; i < above; i++) {
      for (let j = 0; j < synapses; j++) {
        const at = i * synapses + j;
        const m = nowMomenta[at];
        if (m === momenta[at]) continue;
        const word = i * words + (j >> 5);
        const bit = 1 << (j & 31);
        if ((weights[word] ^ nowWeights[word]) & bit) {
          flips++;
          flipped[j]++;
          if (!rows.has(i)) rows.set(i, []);
          rows.get(i).push(j);
        } else if (m > 0 === ((weights[word] & bit) !== 0) && Math.abs(m) > Math.abs(momenta[at])) {
          nearest = Math.max(nearest, Math.abs(m) / threshold);
        } else {
          continue;
        }
        pushes++;
        pushed[j]++;
      }
    }
    return { pushes, flips, nearest, pushed, flipped, rows };
  }
}

function errorMask({ above, synapses, words }, seed, share) {
  const mask = new Uint32Array(above * words);
  let x = (2463534242 ^ (seed * 0x9e3779b9)) >>> 0 || 1;
  const below = share * 4294967296;
  for (let i = 0; i < above; i++) {
    for (let j = 0; j < synapses; j++) {
      x ^= x << 13;
      x ^= x >>> 17;
      x ^= x << 5;
      if (x >>> 0 < below) mask[i * words + (j >> 5)] |= 1 << (j & 31);
    }
  }
  return mask;
}
