const element = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function bytes(id) {
  return Uint8Array.from(atob(element(id).textContent.trim()), (letter) => letter.charCodeAt(0));
}

function randomNumbers(seed) {
  let x = seed >>> 0 || 1;
  return () => {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return (x >>> 0) / 4294967296;
  };
}

/* --- painting ------------------------------------------------------------------------------- */

function channels(value) {
  const hex = value.slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function mix(from, to, share) {
  return from.map((value, k) => value + (to[k] - value) * share);
}

/* A canvas of cells, each of so many pixels with a gap; `paint(n)` gives red, green and blue. */
function paintCells(canvas, cols, rows, count, paint, side = 1, gap = 0) {
  canvas.width = cols * side;
  canvas.height = rows * side;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, canvas.height);
  for (let n = 0; n < count; n++) {
    const [red, green, blue] = paint(n);
    const left = (n % cols) * side;
    const top = Math.floor(n / cols) * side;
    for (let y = top; y < top + side - gap; y++) {
      for (let x = left; x < left + side - gap; x++) {
        picture.data.set([red, green, blue, 255], 4 * (y * canvas.width + x));
      }
    }
  }
  context.putImageData(picture, 0, 0);
}

function paintImage(canvas, pixels, height, width) {
  const paper = channels(colour("off"));
  const ink = channels(colour("ink"));
  paintCells(canvas, width, height, width * height, (n) => mix(paper, ink, pixels[n] / 255));
}

/* Lines over time: `lines` hold `values`, a colour and a width; `marks` are vertical lines. */
function paintChart(canvas, { lines, from, to, low, high, marks = [], now = null, floor = null }) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const x = (t) => 3 + ((t - from) / Math.max(1e-9, to - from)) * (width - 6);
  const y = (v) => height - 4 - ((v - low) / Math.max(1e-9, high - low)) * (height - 8);
  const line = (points, style, thick, dash = []) => {
    context.beginPath();
    context.strokeStyle = style;
    context.lineWidth = thick;
    context.setLineDash(dash);
    points.forEach(([a, b], n) => (n ? context.lineTo(a, b) : context.moveTo(a, b)));
    context.stroke();
  };
  line([[x(from), height - 1], [x(to), height - 1]], colour("line"), 1);
  if (floor !== null) line([[x(from), y(floor)], [x(to), y(floor)]], colour("line"), 1, [3, 3]);
  for (const mark of marks) line([[x(mark), 0], [x(mark), height]], colour("up"), 1, [3, 3]);
  if (now !== null) line([[x(now), 0], [x(now), height]], colour("line"), 1.5);
  context.lineJoin = "round";
  for (const { values, style, thick, dots } of lines) {
    const points = values.map(([t, v]) => [x(t), y(v)]);
    if (points.length > 1) line(points, style, thick);
    context.fillStyle = style;
    const shown = dots ? points : now === null ? [] : points.filter((_, n) => values[n][0] === now);
    for (const [a, b] of shown) {
      context.beginPath();
      context.arc(a, b, dots ? 2 : 3, 0, 7);
      context.fill();
    }
  }
}

/* --- drawing -------------------------------------------------------------------------------- */

/* Strokes as points between 0 and 1, rasterised by their distance to a pixel's centre. */
class Drawing {
  constructor(height, width) {
    this.height = height;
    this.width = width;
    this.strokes = [];
    this.thick = Math.max(0.75, Math.min(height, width) / 22);
  }

  get pixels() {
    const found = new Uint8Array(this.height * this.width);
    for (let y = 0; y < this.height; y++) {
      for (let x = 0; x < this.width; x++) {
        const away = this.distance(x + 0.5, y + 0.5);
        found[y * this.width + x] = Math.round(255 * Math.min(1, Math.max(0, this.thick + 0.5 - away)));
      }
    }
    return found;
  }

  distance(x, y) {
    let least = Infinity;
    for (const stroke of this.strokes) {
      for (let n = 0; n < stroke.length; n++) {
        const [ax, ay] = this.place(stroke[Math.max(0, n - 1)]);
        const [bx, by] = this.place(stroke[n]);
        const [dx, dy] = [bx - ax, by - ay];
        const along = ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1);
        const share = Math.min(1, Math.max(0, along));
        least = Math.min(least, Math.hypot(x - ax - share * dx, y - ay - share * dy));
      }
    }
    return least;
  }

  place([x, y]) {
    return [x * this.width, y * this.height];
  }

  /* As digits of MNIST are: 20 of 28 pixels large, their centre of mass in the middle. */
  centre() {
    const points = this.strokes.flat();
    if (!points.length) return;
    const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const extent = Math.max(Math.max(...xs) - left, Math.max(...ys) - top);
    const inside = 20 / 28 - (2 * this.thick) / Math.min(this.height, this.width);
    const scale = extent > 0.02 ? Math.min(3, inside / extent) : 1;
    this.move(([x, y]) => [(x - left) * scale, (y - top) * scale]);
    const mass = [0, 0, 0];
    const around = new Drawing(this.height * 2, this.width * 2);
    around.thick = this.thick;
    around.strokes = this.strokes.map((s) => s.map(([x, y]) => [x / 2 + 0.25, y / 2 + 0.25]));
    around.pixels.forEach((pixel, n) => {
      mass[0] += pixel;
      mass[1] += pixel * (((n % around.width) + 0.5) / this.width - 0.5);
      mass[2] += pixel * ((Math.floor(n / around.width) + 0.5) / this.height - 0.5);
    });
    const shift = [0.5 - mass[1] / mass[0], 0.5 - mass[2] / mass[0]];
    this.move(([x, y]) => [x + shift[0], y + shift[1]]);
  }

  move(how) {
    this.strokes = this.strokes.map((stroke) => stroke.map(how));
  }
}

function percent(share) {
  return `${100 * share < 10 ? Number((100 * share).toPrecision(2)) : Math.round(100 * share)} %`;
}

/* Replace a share of the pixels by noise, always in the same order. */
function corrupt(pixels, share) {
  const random = randomNumbers(12345);
  return pixels.map((pixel) => {
    const [drawn, noise] = [random(), random()];
    return drawn < share ? Math.round(255 * noise * noise) : pixel;
  });
}

/* --- the page ------------------------------------------------------------------------------- */

class Playground {
  constructor(engine, images) {
    this.engine = engine;
    this.facts = engine.facts;
    [this.height, this.width] = this.facts.imageShape.slice(-2);
    this.images = this.facts.labels.map((_, n) =>
      images.slice(n * engine.pixels, (n + 1) * engine.pixels),
    );
    this.drawing = new Drawing(this.height, this.width);
    this.plain = new Uint8Array(engine.pixels);
    this.label = null;
    this.examples = [];
    this.curve = [];
    this.trace = [];
    this.t = 0;
    this.neuron = null;
    this.random = randomNumbers(7);
    this.training = false;
  }

  get pixels() {
    return corrupt(this.plain, element("corrupt").value / 100);
  }

  /* Relax from t = 0; if a class is chosen as learning does, then under the nudge. Every state is
     kept. */
  relax() {
    const { engine, facts } = this;
    this.trace = [];
    const keep = () => this.trace.push({ states: engine.states, energy: engine.energy });
    engine.start(this.pixels);
    keep();
    for (let t = 0, moves = true; moves && t < facts.steps; t++) {
      moves = engine.stepFree(this.label, t === 0);
      keep();
    }
    this.rest = this.trace.length - 1;
    for (let t = 0, moves = this.label !== null; moves && t < engine.nudge.steps; t++) {
      moves = engine.stepTowards(this.label, t === 0);
      keep();
    }
    this.preview = this.label === null ? null : engine.preview(this.pixels, this.label);
  }

  get empty() {
    return !this.plain.some((pixel) => pixel > 0);
  }

  /* Show the image, and its relaxation from a step on. */
  show(from = 0) {
    this.relax();
    this.paintInput();
    this.paintLearning();
    this.play(from);
  }

  play(from) {
    clearTimeout(this.timer);
    this.playing = true;
    this.go(Math.min(from, this.trace.length - 1));
    const on = () => {
      if (this.t >= this.trace.length - 1) {
        this.playing = false;
        this.paintTransport();
        return;
      }
      this.go(this.t + 1);
      this.timer = setTimeout(on, 90);
    };
    this.timer = setTimeout(on, 90);
  }

  stop() {
    clearTimeout(this.timer);
    this.playing = false;
    this.paintTransport();
  }

  go(t) {
    this.t = Math.max(0, Math.min(t, this.trace.length - 1));
    this.paintStates();
    this.paintTransport();
  }

  /* --- what is shown ------------------------------------------------------------------------ */

  paintInput() {
    paintImage(element("draw"), this.pixels, this.height, this.width);
  }

  paintTransport() {
    element("time").max = this.trace.length - 1;
    element("time").value = this.t;
    element("step").textContent = `${this.t} / ${this.trace.length - 1}`;
    element("play").classList.toggle("playing", this.playing);
    element("play").setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  averages(states) {
    const { perClass, classes, readout } = this.facts;
    const top = states.length - classes.length * perClass;
    const read = readout === "average" ? perClass : 1;
    return classes.map((_, c) => {
      let sum = 0;
      for (let k = 0; k < read; k++) sum += states[top + c * perClass + k];
      return sum / read;
    });
  }

  /* The first of the largest, as the engine reads out. */
  winner(scores) {
    return scores.indexOf(Math.max(...scores));
  }

  /* Colours of the neurons at the step that is shown; where a nudge changed a bit, its own. */
  painter() {
    const { states } = this.trace[this.t];
    const rest = this.t > this.rest ? this.trace[this.rest].states : null;
    const [on, off, half, up, down] = ["on", "off", "half", "up", "down"].map((n) => channels(colour(n)));
    return (j) => {
      const bit = states[j] >= 0.5;
      if (rest && bit !== rest[j] >= 0.5) return bit ? up : down;
      return bit ? on : mix(off, half, Math.max(0, 2 * states[j]));
    };
  }

  paintStates() {
    const { facts, engine, trace, t } = this;
    const { states, energy } = trace[t];
    const paint = this.painter();
    let first = 0;
    facts.layers.slice(0, -1).forEach((shape, n) => {
      const begin = first;
      const canvas = element(`layer${n}`);
      const { cols, rows, neuron } = gridOf(shape);
      const side = engine.counts[n] > 6000 ? 2 : 6;
      paintCells(canvas, cols, rows, engine.counts[n], (k) => paint(begin + neuron(k)), side, side > 2 ? 1 : 0);
      const active = states.slice(begin, begin + engine.counts[n]).filter((s) => s >= 0.5);
      element(`active${n}`).textContent = `${active.length.toLocaleString("en")} of ${engine.counts[n].toLocaleString("en")} send 1`;
      first += engine.counts[n];
    });
    const scores = this.averages(states);
    const best = this.winner(scores);
    facts.classes.forEach((_, c) => {
      const row = element(`class${c}`);
      const cols = Math.min(facts.perClass, 25);
      paintCells(row.querySelector("canvas"), cols, Math.ceil(facts.perClass / cols), facts.perClass, (k) => paint(first + c * facts.perClass + k), 6, 1);
      row.querySelector("i").style.width = `${100 * Math.min(1, Math.max(0, scores[c]))}%`;
      row.querySelector("output").textContent = scores[c].toFixed(2);
      row.classList.toggle("best", c === best && !this.empty && t > 0);
    });
    element("energy").textContent = energy.toFixed(1);
    this.paintAnswer(scores, best);
    this.paintCharts(best);
  }

  paintAnswer(scores, best) {
    const { facts, t } = this;
    const name = facts.classes[best];
    element("reads").textContent = this.empty || t === 0 ? "\u2013" : name;
    element("reads").classList.toggle("long", name.length > 2);
    const sorted = [...scores].sort((a, b) => b - a);
    element("verdict").textContent = this.empty
      ? "Draw a digit, or pick one."
      : t === 0
        ? "Every neuron starts from the same state."
        : `Reads ${name}, ahead by ${(sorted[0] - sorted[1]).toFixed(2)}`;
    const changed = t > this.rest ? this.changedBits() : 0;
    const { margin } = facts.plan;
    const held = margin && this.label !== null ? `; ${facts.classes[this.label]} is held back by ${margin}` : "";
    element("phase").textContent =
      (t > this.rest
        ? `Nudged towards ${facts.classes[this.label]}, step ${t - this.rest}: ${changed.toLocaleString("en")} bits differ from rest`
        : t === this.rest
          ? facts.bits
            ? "At rest: no bit changes any more"
            : `End of the free phase, after ${t} steps`
          : `Free phase, step ${t} of ${this.rest}`) + held;
  }

  changedBits() {
    const now = this.trace[this.t].states;
    return this.trace[this.rest].states.filter((s, j) => s >= 0.5 !== now[j] >= 0.5).length;
  }

  paintCharts(best) {
    const { facts, trace, t } = this;
    const marks = trace.length - 1 > this.rest ? [this.rest] : [];
    const energies = trace.map(({ energy }, n) => [n, energy]);
    const values = energies.map((point) => point[1]);
    const range = { from: 0, to: trace.length - 1, marks, now: t };
    paintChart(element("energies"), {
      ...range,
      lines: [{ values: energies, style: colour("on"), thick: 2 }],
      low: Math.min(...values),
      high: Math.max(...values),
    });
    const all = trace.map(({ states }) => this.averages(states));
    const lines = facts.classes.map((_, c) => ({
      values: all.map((scores, n) => [n, scores[c]]),
      style: c === this.label ? colour("up") : c === best ? colour("on") : colour("half"),
      thick: c === best || c === this.label ? 2.2 : 1,
    }));
    lines.sort((a, b) => a.thick - b.thick);
    const most = Math.max(1, ...all.flat());
    const least = Math.min(0, ...all.flat());
    paintChart(element("scores"), { ...range, lines, low: least, high: most, floor: 0.5 });
    element("ahead").textContent = this.empty ? "" : facts.classes[best];
  }

  /* --- learning ----------------------------------------------------------------------------- */

  paintLearning() {
    const { facts, label, preview } = this;
    facts.classes.forEach((_, c) => element(`nudge${c}`).classList.toggle("chosen", c === label));
    element("nudged").hidden = label === null;
    if (!preview) return;
    const [pushes, flips] = ["pushes", "flips"].map((what) => preview.reduce((sum, p) => sum + p[what], 0));
    const nearest = Math.max(...preview.map((p) => p.nearest));
    element("consequence").textContent =
      `Learning this image would push ${pushes.toLocaleString("en")} synapses towards a flip and flip ${flips.toLocaleString("en")}.` +
      (flips === 0 && pushes > 0
        ? ` The nearest comes to ${percent(nearest)} of tau: learn it again, or lower tau.`
        : pushes === 0
          ? " The nudge changes no bit that a synapse could learn from."
          : "");
    this.paintMap("pushed", (j) => preview[0].pushed[j], "on");
    this.paintMap("flipping", (j) => preview[0].flipped[j], "up");
    this.paintField();
  }

  /* The synapses from each pixel, or of a kernel, added up over the neurons above. */
  paintMap(id, values, style) {
    const coupling = this.facts.couplings[0];
    const [height, width] = fieldOf(coupling, this.height, this.width);
    const numbers = Array.from({ length: height * width }, (_, n) => values(n));
    const most = Math.max(1, ...numbers);
    const [from, to] = [channels(colour("off")), channels(colour(style))];
    paintCells(element(id), width, height, numbers.length, (n) => mix(from, to, Math.sqrt(numbers[n] / most)));
  }

  /* The weights of the hidden neuron that was clicked, those that would flip marked. */
  paintField() {
    element("onefield").hidden = this.neuron === null;
    if (this.neuron === null) return;
    const coupling = this.facts.couplings[0];
    const [height, width] = fieldOf(coupling, this.height, this.width);
    const row = this.neuron % coupling.above;
    const flips = new Set(this.preview ? this.preview[0].rows.get(row) || [] : []);
    const [plus, minus, flip] = ["on", "off", "up"].map((name) => channels(colour(name)));
    paintCells(element("field"), width, height, height * width, (j) =>
      flips.has(j) ? flip : this.engine.weight(0, row, j) ? plus : minus,
    );
    element("which").textContent = `weights of hidden neuron ${this.neuron + 1}`;
  }

  learn() {
    this.engine.learn(this.pixels, this.label);
    this.measure();
    this.show(this.rest);
  }

  keepExample() {
    this.examples.push({ pixels: this.pixels, label: this.label });
    const box = element("drawings");
    if (this.examples.length === 1) box.replaceChildren();
    const figure = document.createElement("figure");
    const canvas = document.createElement("canvas");
    const caption = document.createElement("figcaption");
    const example = this.examples[this.examples.length - 1];
    caption.textContent = this.facts.classes[example.label];
    figure.title = "Remove";
    figure.append(canvas, caption);
    figure.onclick = () => {
      this.examples.splice(this.examples.indexOf(example), 1);
      figure.remove();
      element("train").disabled = !this.examples.length;
    };
    box.append(figure);
    paintImage(canvas, example.pixels, this.height, this.width);
    element("train").disabled = false;
    this.measure();
  }

  /* Errors on the drawings and on the test images of the page, after so many learnt. */
  measure() {
    const wrong = (pairs) =>
      (100 * pairs.filter(([pixels, label]) => this.engine.predict(pixels) !== label).length) / pairs.length;
    const drawn = this.examples.map(({ pixels, label }) => [pixels, label]);
    const tested = this.images.map((pixels, n) => [pixels, this.facts.labels[n]]);
    const point = {
      learnt: this.engine.learnt,
      drawn: drawn.length ? wrong(drawn) : null,
      tested: tested.length ? wrong(tested) : null,
    };
    if (this.curve.length && this.curve[this.curve.length - 1].learnt === point.learnt) this.curve.pop();
    this.curve.push(point);
    this.paintCurve();
  }

  paintCurve() {
    const last = this.curve[this.curve.length - 1];
    const lines = ["tested", "drawn"].map((what) => ({
      values: this.curve.filter((p) => p[what] !== null).map((p) => [p.learnt, p[what]]),
      style: colour(what === "drawn" ? "up" : "on"),
      thick: 2,
      dots: true,
    }));
    const high = Math.max(10, ...lines.flatMap((line) => line.values.map((point) => point[1])));
    paintChart(element("curve"), { lines, from: 0, to: Math.max(10, last.learnt), low: 0, high });
    const said = [];
    if (last.tested !== null) said.push(`test ${last.tested.toFixed(0)} %`);
    if (last.drawn !== null) said.push(`drawings ${last.drawn.toFixed(0)} %`);
    element("error").textContent = said.join(" \u00b7 ");
    element("tally").textContent =
      `${last.learnt.toLocaleString("en")} images learnt, ${this.engine.flips.toLocaleString("en")} flips. ` +
      `Blue: ${this.images.length} test images of the page; orange: your drawings.`;
  }

  /* Learn so many images of the drawings, in shuffled rounds, some per frame. */
  async train(count) {
    this.training = true;
    this.paintButtons();
    let round = [];
    for (let n = 0; n < count; n++) {
      if (!round.length) round = [...this.examples].sort(() => this.random() - 0.5);
      const { pixels, label } = round.pop();
      this.engine.learn(pixels, label);
      if (n % 5 === 4) {
        this.measure();
        await new Promise((done) => setTimeout(done));
      }
    }
    this.training = false;
    this.paintButtons();
    this.measure();
    this.show(this.rest);
  }

  paintButtons() {
    for (const id of ["train", "learn", "keep", "reset"]) element(id).disabled = this.training;
    if (!this.examples.length) element("train").disabled = true;
    element("train").textContent = this.training ? "Training\u2026" : "Train 50 images";
  }

  paintAll() {
    this.paintInput();
    this.paintStates();
    this.paintLearning();
    this.paintCurve();
    document.querySelectorAll("#samples canvas").forEach((canvas, n) => {
      paintImage(canvas, this.images[n], this.height, this.width);
    });
    document.querySelectorAll("#drawings canvas").forEach((canvas, n) => {
      paintImage(canvas, this.examples[n].pixels, this.height, this.width);
    });
  }
}

/* How the neurons of a layer are laid out: dense ones in a rectangle, channels side by side. */
function gridOf(shape) {
  if (shape.length === 1) {
    const cols = Math.min(shape[0], Math.max(16, 2 ** Math.ceil(Math.log2(Math.sqrt(2 * shape[0])))));
    return { cols, rows: Math.ceil(shape[0] / cols), neuron: (k) => k };
  }
  const [count, height, width] = shape;
  const across = Math.min(count, Math.max(1, Math.round(Math.sqrt((2 * count * height) / width))));
  const cols = across * width;
  const rows = Math.ceil(count / across) * height;
  const neuron = (k) => {
    const [y, x] = [Math.floor(k / cols), k % cols];
    const channel = Math.floor(y / height) * across + Math.floor(x / width);
    return ((y % height) * width + (x % width)) * count + channel;
  };
  return { cols, rows, neuron };
}

function fieldOf(coupling, height, width) {
  return coupling.kind === "dense" ? [height, width] : [coupling.kernel, coupling.kernel];
}

/* --- controls ------------------------------------------------------------------------------- */

function addClasses(playground) {
  playground.facts.classes.forEach((name, c) => {
    const button = document.createElement("button");
    button.id = `nudge${c}`;
    button.textContent = name;
    button.onclick = () => {
      playground.label = playground.label === c ? null : c;
      playground.show(playground.rest);
    };
    element("classes").append(button);
    const row = document.createElement("div");
    row.className = "class";
    row.id = `class${c}`;
    row.innerHTML = '<span></span><canvas></canvas><div class="bar"><i></i></div><output></output>';
    row.querySelector("span").textContent = name;
    element("outputs").append(row);
  });
}

function addLayers(playground) {
  const last = playground.facts.layers.length - 1;
  for (let n = last - 1; n >= 0; n--) {
    const box = document.createElement("div");
    box.innerHTML = `<h3>Hidden neurons${last > 1 ? `, layer ${n + 1}` : ""} <span id="active${n}"></span></h3><canvas id="layer${n}"></canvas>`;
    element("hidden").append(box);
    if (n > 0) continue;
    const { cols, rows, neuron } = gridOf(playground.facts.layers[n]);
    const canvas = box.querySelector("canvas");
    canvas.title = "Click a neuron to see its weights";
    canvas.onclick = (event) => {
      const place = canvas.getBoundingClientRect();
      const x = Math.floor(((event.clientX - place.left) / place.width) * cols);
      const y = Math.floor(((event.clientY - place.top) / place.height) * rows);
      playground.neuron = neuron(y * cols + x);
      element("nudged").hidden = false;
      playground.paintField();
    };
  }
}

function addSamples(playground) {
  playground.images.forEach((pixels, n) => {
    const canvas = document.createElement("canvas");
    canvas.title = `a ${playground.facts.classes[playground.facts.labels[n]]}`;
    canvas.onclick = () => choose(playground, n);
    element("samples").append(canvas);
  });
}

function choose(playground, n) {
  document.querySelectorAll("#samples canvas").forEach((canvas, k) => {
    canvas.classList.toggle("chosen", k === n);
  });
  playground.drawing.strokes = [];
  playground.plain = n === null ? new Uint8Array(playground.engine.pixels) : playground.images[n];
  playground.label = null;
  playground.show();
}

function addDrawing(playground) {
  const canvas = element("draw");
  const at = (event) => {
    const place = canvas.getBoundingClientRect();
    return [(event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height];
  };
  let drawing = false;
  const update = () => {
    playground.plain = playground.drawing.pixels;
    playground.paintInput();
  };
  canvas.onpointerdown = (event) => {
    drawing = true;
    canvas.setPointerCapture(event.pointerId);
    if (!playground.drawing.strokes.length) choose(playground, null);
    playground.drawing.strokes.push([at(event)]);
    update();
  };
  canvas.onpointermove = (event) => {
    if (!drawing) return;
    playground.drawing.strokes[playground.drawing.strokes.length - 1].push(at(event));
    update();
  };
  canvas.onpointerup = () => {
    if (!drawing) return;
    drawing = false;
    if (element("centre").checked) playground.drawing.centre();
    update();
    playground.show();
  };
  canvas.onpointercancel = canvas.onpointerup;
}

function addSlider(id, said, changed) {
  const slider = element(id);
  const output = slider.parentElement.querySelector("output");
  const tell = () => (output.textContent = said(Number(slider.value)));
  slider.oninput = () => {
    tell();
    changed(Number(slider.value));
  };
  tell();
}

/* From 2^-10 at -100, where everything that is pushed flips, to 4 at 20. */
function tauScale(value) {
  return value <= -100 ? 0 : 2 ** (value / 10);
}

function addControls(playground) {
  const { engine, facts } = playground;
  element("clear").onclick = () => choose(playground, null);
  element("pick").onclick = () => choose(playground, Math.floor(playground.random() * facts.labels.length));
  element("play").onclick = () => {
    if (playground.playing) playground.stop();
    else playground.play(playground.t < playground.trace.length - 1 ? playground.t : 0);
  };
  const move = (by) => () => {
    playground.stop();
    playground.go(playground.t + by);
  };
  element("back").onclick = move(-1);
  element("forth").onclick = move(1);
  element("time").oninput = (event) => {
    const t = Number(event.target.value); // before it is painted again
    playground.stop();
    playground.go(t);
  };
  element("learn").onclick = () => playground.learn();
  element("keep").onclick = () => playground.keepExample();
  element("train").onclick = () => playground.train(50);
  element("reset").onclick = async () => {
    await engine.reset();
    engine.setErrors(element("errors").value / 200);
    playground.curve = [];
    playground.measure();
    playground.show();
  };
  addSlider("corrupt", (value) => `${value} %`, () => playground.show());
  const betas = facts.plan.betas.map((beta) => Math.abs(beta) / facts.betaOne);
  addSlider(
    "beta",
    (value) => ((Math.max(...betas) * value) / 100).toFixed(2),
    (value) => {
      engine.setBeta(value / 100);
      playground.show(playground.rest);
    },
  );
  addSlider(
    "tau",
    (value) => percent(tauScale(value)),
    (value) => {
      engine.setTau(tauScale(value));
      playground.show(playground.rest);
    },
  );
  addSlider(
    "errors",
    (value) => `${value / 2} %`,
    (value) => {
      engine.setErrors(value / 200);
      playground.measure();
      playground.show();
    },
  );
  element("theme").onclick = () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    playground.paintAll();
  };
  window.addEventListener("resize", () => playground.paintAll());
}

function describe(facts, engine) {
  const synapses = facts.couplings.reduce((sum, c) => sum + c.above * c.synapses, 0);
  const layers = [facts.imageShape.slice(-2), ...facts.layers].map((shape) => shape.join("\u00d7"));
  const { recipe, test_error: error, epoch, data } = facts.origin;
  const reached = error ? `, ${error[facts.readout].toFixed(2)} % test error after ${epoch} epochs` : "";
  element("about").textContent =
    `${recipe || "A network"} on ${data || "its data"}: ${layers.join(" \u2013 ")} neurons that send one bit, ` +
    `${synapses.toLocaleString("en")} synapses of one bit each${reached}.`;
  element("origin").textContent = recipe ? `Trained by binep ${facts.origin.binep}, seed ${facts.origin.seed}.` : "";
}

async function begin() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const facts = JSON.parse(element("facts").textContent);
  const engine = await Engine.open(bytes("wasm"), bytes("network"), facts);
  const playground = new Playground(engine, bytes("images"));
  describe(facts, engine);
  addClasses(playground);
  addLayers(playground);
  addSamples(playground);
  addDrawing(playground);
  addControls(playground);
  engine.setTau(tauScale(Number(element("tau").value)));
  playground.measure();
  playground.show();
  playground.paintAll();
  if (playground.images.length) choose(playground, 0);
  window.playground = playground;
}

begin();
