// Runs as cards, curves, mixes and samples. Whatever somebody wrote only ever becomes text, never markup.
"use strict";
(() => {
  const CHARTS = [
    { key: "loss", title: "Training loss", unit: "nats/token" },
    { key: "validation", title: "Validation loss by source", unit: "nats/token" },
    { key: "lr", title: "Learning rate", unit: "learning rate" },
    { key: "tokens_per_second", title: "Speed", unit: "tokens/s", fromZero: true },
    { key: "utilisation", title: "MFU", unit: "% of a matrix product", times: 100, fromZero: true },
  ];
  const DASHES = [[], [7, 4], [2, 3], [11, 3, 2, 3], [4, 2]];
  const COLOURS = 8;
  const HEIGHT = 250;
  const POLL_MS = 1500;
  const AWAY_MS = 5000;

  const data = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("runs");
  const asked = decodeURIComponent(location.hash.slice(1)).split(",").filter(Boolean);
  const runs = new Map(); // by name: what is known of a run, in the order in which they are listed
  let axis = "step";
  let colours = 0;

  // --- what is known ---

  // True where there is something new to draw.
  function take(cards) {
    let changed = [...runs.keys()].join() !== cards.map((card) => card.name).join();
    const first = runs.size === 0;
    const stages = new Set();
    const before = new Map(runs);
    runs.clear();
    for (const card of cards) {
      const known = before.get(card.name);
      const goesOn = known && known.revision === card.revision;
      const points = goesOn ? known.points : [];
      if (card.points.length || !goesOn) changed = true;
      points.push(...card.points);
      // At first those that the address names, or are given as shown, or the newest of each stage; later, each that appears.
      const begins = asked.length ? asked.includes(card.name) : card.shown ?? !stages.has(card.stage);
      const kept = known?.kept ?? !first; // ticked by hand, or begun while somebody looked
      const shown = known && (known.kept || card.shown == null) ? known.shown : kept || begins;
      if (known && known.shown !== shown) changed = true;
      stages.add(card.stage);
      const title = card.title || card.name;
      runs.set(card.name, { ...card, title, points, shown, kept, colour: known ? known.colour : colours++ % COLOURS });
    }
    return changed;
  }

  const shownRuns = () => [...runs.values()].filter((run) => run.shown);
  const axisName = () => (axis === "step" ? "steps" : "tokens");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (index) => `--c${index % COLOURS}`;

  // --- elements ---

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const heading = (text) => make("h2", {}, text);
  const list = make("div", { class: "runs" });
  const charts = make("div", { class: "charts" });
  const mixes = make("div", { class: "mix" });
  const samples = make("div", { class: "samples" });
  const mixPart = make("section", {}, heading("Rows sampled"), mixes);
  const samplePart = make("section", {}, heading("Samples during training"), samples);
  const away = make("p", { class: "note bad", hidden: "", role: "status" });
  const axisButtons = ["step", "tokens"].map((key) => {
    const button = make("button", { type: "button", value: key }, key === "step" ? "steps" : "tokens");
    button.addEventListener("click", () => {
      axis = key;
      draw();
    });
    return button;
  });
  const axes = make("div", { class: "axis" }, "over", ...axisButtons, make("span", {}, "drag to zoom, double-click for all"));
  const rest = document.getElementById("rest"); // of a report, which opens with the curves
  if (rest) place.append(heading("Learning curves"), axes, charts);
  else place.append(heading("Runs"), away, list, axes, charts, mixPart, samplePart);
  rest?.append(heading("Runs"), list, mixPart, samplePart);

  // --- cards ---

  const elements = new Map(); // by name of a run, so that a box keeps the focus while numbers change around it

  function card(run) {
    const box = make("input", { type: "checkbox" });
    const parts = {
      box, name: make("b", {}, run.title), time: make("time"), state: make("span"), bar: make("i"), facts: make("dl"),
    };
    parts.root = make(
      "label", { class: "run" }, make("header", {}, box, parts.name, parts.time, parts.state),
      make("span", { class: "bar" }, parts.bar), parts.facts,
    );
    box.addEventListener("change", () => {
      Object.assign(runs.get(run.name), { shown: box.checked, kept: true });
      const names = shownRuns().map((shown) => encodeURIComponent(shown.name));
      history.replaceState(null, "", `#${names.join()}`);
      draw();
    });
    return parts;
  }

  function drawCards() {
    for (const name of elements.keys()) if (!runs.has(name)) elements.delete(name);
    for (const run of runs.values()) {
      if (!elements.has(run.name)) elements.set(run.name, card(run));
      const parts = elements.get(run.name);
      parts.root.style.setProperty("--own", `var(${colour(run.colour)})`);
      parts.root.classList.toggle("shown", run.shown);
      parts.box.checked = run.shown;
      parts.state.textContent = run.state;
      parts.state.className = `state ${run.state}`;
      parts.time.textContent = run.time ? clock(run.time) : "";
      parts.bar.style.width = `${100 * run.share}%`;
      parts.facts.replaceChildren(...run.facts.flatMap(([what, much]) => [make("dt", {}, what), make("dd", {}, much)]));
    }
    const wanted = [...runs.keys()].map((name) => elements.get(name).root);
    if (wanted.some((root, i) => list.children[i] !== root) || list.children.length !== wanted.length) {
      list.replaceChildren(...wanted);
    }
  }

  function clock(seconds) {
    const then = new Date(seconds * 1000);
    const today = then.toDateString() === new Date().toDateString();
    const day = today ? {} : { month: "short", day: "numeric" };
    return then.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit" });
  }

  // --- curves ---

  // The lines of a chart. A run has its colour; where it is alone, its sources have colours of their own.
  function lines({ key, times = 1 }) {
    const several = shownRuns().length > 1;
    return shownRuns().flatMap((run) => {
      const line = (label, value, look) => {
        const points = run.points.filter((point) => value(point) !== undefined);
        return { label: several || !label ? [run.title, label].filter(Boolean).join(" · ") : label, ...look,
          x: points.map((point) => point[axis]), y: points.map((point) => value(point) * times) };
      };
      if (key !== "validation") return [line("", (point) => point[key], { colour: colour(run.colour), dash: [], width: 1.75 })];
      const sources = [...new Set(run.points.flatMap((point) => Object.keys(point.validation ?? {})))];
      const own = several || sources.length === 1;
      const bySource = sources.map((source, i) => line(source, (point) => (point.validation ?? {})[source], {
        colour: colour(own ? run.colour : i + 1), dash: own ? DASHES[i % DASHES.length] : [], width: 1.75,
      }));
      const mean = line("mean", (point) => point.val_loss, { colour: "--ink", dash: [], width: 2.5 });
      return own ? bySource : [mean, ...bySource];
    }).filter((line) => line.x.length);
  }

  class Chart {
    constructor(what) {
      this.what = what;
      this.plot = make("div", { class: "plot", role: "img" });
      this.legend = make("ul", { class: "legend" });
      this.figure = make(
        "figure", { "data-chart": what.key },
        make("figcaption", {}, what.title), this.plot, this.legend,
      );
      charts.append(this.figure);
      new ResizeObserver(() => this.fit()).observe(this.plot);
    }

    // Lines that are the same ones as before get their new points, and whoever zoomed in stays there.
    draw() {
      const now = lines(this.what);
      this.figure.hidden = !now.length;
      if (!now.length) return;
      this.last = Math.max(...shownRuns().flatMap((run) => run.points.slice(-1).map((point) => point[axis])));
      this.plot.setAttribute("aria-label", `${this.what.title}, ${this.what.unit}, over ${axisName()}`);
      const table = uPlot.join(now.map(({ x, y }) => [x, y]));
      const same = JSON.stringify([axis, css("--page"), now.map(({ label, colour }) => [label, colour])]);
      if (same === this.same) {
        this.u.setData(table, !this.zoomed);
        if (this.zoomed) this.u.redraw();
        this.tell();
        return;
      }
      this.same = same;
      this.zoomed = false;
      this.u?.destroy();
      this.u = new uPlot(this.options(now), table, this.plot);
      this.u.over.addEventListener("dblclick", () => (this.zoomed = false));
      this.values = now.map((line, i) => this.entry(line, i + 1));
      this.legend.replaceChildren(...this.values.map(({ item }) => item));
      this.tell();
    }

    options(now) {
      const font = "12px system-ui, sans-serif";
      const look = {
        stroke: css("--soft"), font, labelFont: font, labelSize: 18, labelGap: 0,
        grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1, size: 5 },
        values: (u, splits) => splits.map(short),
      };
      const unit = this.what.unit;
      return {
        width: this.width(), height: HEIGHT, legend: { show: false },
        // From 0 to where the longest run is, in all charts alike, unless somebody zoomed in.
        scales: {
          x: { time: false, range: (u, least, most) => (this.zoomed ? [least, most] : [0, this.last]) },
          y: { range: (u, least, most) => uPlot.rangeNum(this.what.fromZero ? 0 : least, most, 0.1, true) },
        },
        cursor: { sync: { key: "runs", scales: ["x", null] }, drag: { x: true, y: false }, points: { size: 7 } },
        axes: [
          { ...look, label: axisName(), size: 32 },
          { ...look, label: unit, size: 54 },
        ],
        series: [{}, ...now.map(({ label, colour, dash, width }) => ({
          label, stroke: css(colour), width, dash, spanGaps: true, points: { size: 5, fill: css(colour) },
        }))],
        hooks: { setCursor: [() => this.tell()], setSelect: [(u) => (this.zoomed = u.select.width > 0)] },
      };
    }

    // A line's name with its value under the cursor, or its last one; a click hides it.
    entry(line, i) {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const drawn = { x1: 0, x2: "100%", y1: "50%", y2: "50%", "stroke-width": 2.5, "stroke-dasharray": line.dash.join(" ") };
      for (const [key, value] of Object.entries(drawn)) stroke.setAttribute(key, value);
      stroke.style.stroke = css(line.colour);
      svg.append(stroke);
      const value = make("output");
      const button = make("button", { type: "button", "aria-pressed": "true" }, svg, make("span", {}, line.label), value);
      button.addEventListener("click", () => {
        const show = !this.u.series[i].show;
        this.u.setSeries(i, { show });
        button.setAttribute("aria-pressed", show);
      });
      return { item: make("li", {}, button), value };
    }

    tell() {
      if (!this.values) return;
      const { idx } = this.u.cursor;
      this.values.forEach(({ value }, i) => {
        const column = this.u.data[i + 1];
        let at = idx ?? column.length - 1;
        while (at > 0 && column[at] == null) at -= 1;
        value.textContent = column[at] == null ? "" : precise(column[at]);
      });
    }

    width() {
      return Math.max(200, this.plot.clientWidth);
    }

    fit() {
      if (this.u && this.u.width !== this.width()) this.u.setSize({ width: this.width(), height: HEIGHT });
    }
  }

  const drawn = CHARTS.map((what) => new Chart(what));

  // Of an axis: 1200 is 1.2k, and 0.00002 is 2e-5.
  function short(value) {
    const size = Math.abs(value);
    for (const [unit, least] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (size >= least) return `${Number((value / least).toPrecision(4))}${unit}`;
    }
    return size && size < 1e-3 ? value.toExponential().replace(/(\.\d{3})\d+/, "$1") : String(Number(value.toPrecision(4)));
  }

  function precise(value) {
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size && size < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
  }

  // --- mixes and samples ---

  function drawMixes() {
    const shown = shownRuns().filter((run) => run.drawn.length);
    mixPart.hidden = !shown.length;
    mixes.replaceChildren(...shown.map((run) => {
      const rows = run.drawn.map(([source, p, share, count]) => {
        const bar = make("span", { class: "share" });
        bar.style.width = `${100 * share}%`;
        return make("tr", {}, make("td", {}, source, bar), ...[p, share, count].map((text) => make("td", { class: "n" }, text)));
      });
      const head = ["requested", "sampled", "rows"].map((name) => make("th", { class: "n" }, name));
      const table = make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, run.title), ...head)), make("tbody", {}, ...rows));
      table.style.setProperty("--own", `var(${colour(run.colour)})`);
      return table;
    }));
  }

  let written = "";

  function drawSamples() {
    const all = shownRuns().flatMap((run) => run.points.filter((point) => point.sample).reverse().map((point) => ({ run, ...point })));
    const now = JSON.stringify(all.map(({ run, step }) => [run.name, run.revision, step]));
    if (now === written) return; // somebody may be reading
    written = now;
    samplePart.hidden = !all.length;
    samples.replaceChildren(...all.map(({ run, step, sample }) => make(
      "article", {}, make("h3", {}, `${run.title}, step ${step.toLocaleString("en")}`), make("pre", { dir: "auto" }, sample),
    )));
  }

  function draw() {
    place.hidden = !runs.size;
    for (const button of axisButtons) button.setAttribute("aria-pressed", String(button.value === axis));
    drawCards();
    for (const chart of drawn) chart.draw();
    drawMixes();
    drawSamples();
  }

  // --- live ---

  async function poll() {
    let next = POLL_MS;
    try {
      const have = [...runs.values()].map((run) => `${run.name}:${run.revision}:${run.points.length}`);
      const response = await fetch(`runs?${new URLSearchParams(have.map((one) => ["have", one]))}`);
      if (!response.ok) throw new Error((await response.json()).error.message);
      const answer = await response.json();
      document.getElementById("none").hidden = answer.runs.length > 0;
      const unread = document.getElementById("unread");
      const counts = Object.entries(answer.unread).map(([file, lines]) => `${lines} of ${file}`);
      unread.textContent = `Skipped log lines (damaged or of another version): ${counts.join(", ")}.`;
      unread.hidden = !counts.length;
      if (take(answer.runs)) draw();
      else drawCards();
      away.hidden = true;
    } catch (error) {
      next = AWAY_MS;
      away.hidden = false;
      away.textContent = `niels-gpt report --live does not answer (${error.message}); the page shows the last known state.`;
    }
    setTimeout(poll, next);
  }

  // A table wider than the page is scrolled by the keyboard, too.
  const fits = new ResizeObserver((sized) => {
    for (const { target } of sized) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  });
  for (const table of document.querySelectorAll(".wide")) fits.observe(table);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  take(data.runs);
  draw();
  if (data.live) poll();
})();
