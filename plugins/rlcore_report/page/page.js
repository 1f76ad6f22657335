"use strict";
// The page of a report. Every text of a run is put into a text node; nothing here parses HTML or fetches from elsewhere.
const COLOURS = ["#2f6fde", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#a07a00", "#5c5f66"];
const SHOWN_AT_ONCE = 20;
const FIRST_EVALUATION = "first evaluation";
let data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const state = {
  metric: "", smooth: 0, run: 0, source: "", step: null, text: "", cut: false, group: "", sort: "file", more: SHOWN_AT_ONCE,
  option: "", all: false, passed: false,
};

const colour = (variant) => COLOURS[variant % COLOURS.length];
const number = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(4)).toString());

/** Return an element with properties and children; strings become text nodes. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "style") element.style.cssText = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a section that `update(name)` draws again. */
const drawers = {};
function section(name, title, draw) {
  const body = make("div", { id: `${name}-body` });
  drawers[name] = () => body.replaceChildren(...[draw()].flat().filter(Boolean));
  drawers[name]();
  return make("section", { id: name }, make("h2", {}, title), body);
}
const update = (name) => drawers[name]();

function control(label, element) {
  return make("label", {}, label, element);
}
function select(id, value, choices, change) {
  const element = make("select", { id, onchange: () => change(element.value) },
    choices.map(([key, text]) => make("option", { value: key }, text)));
  element.value = value;
  return element;
}
function table(head, rows, numeric = () => false) {
  const line = (cells, tag) => cells.map((cell, i) => make(tag, { className: numeric(i) ? "number" : "" }, cell));
  return make("div", { className: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, line(head, "th"))),
    make("tbody", {}, rows.map(([cells, name]) => make("tr", { className: name || "" }, line(cells, "td"))))));
}

// ---- the runs and their verdicts
function runCards() {
  return [
    make("div", { className: "facts" }, data.runs.map((run) => make("div", { className: "fact" },
      make("div", {}, make("span", { className: "dot", style: `background:${colour(run.variant)}` }), make("b", {}, run.name)),
      make("div", {}, `${run.trainer}, ${run.model}`),
      make("div", { className: "dim" }, `step ${run.step}${run.total ? ` of ${run.total}` : ""}`
        + `${run.running ? ", still going on" : ""}${run.seed === null ? "" : `, seed ${run.seed}`}`),
      make("div", { className: "dim" }, run.folder), make("div", { className: "dim" }, run.plugins)))),
    data.runs.flatMap((run) => run.notes.map((note) => make("p", { className: "note" },
      data.runs.length > 1 ? `${run.name}: ${note}` : note))),
  ];
}
function health() {
  const passed = data.verdicts.flat().filter((each) => each.level === "good").length;
  const toggle = make("input", { type: "checkbox", id: "passed", checked: state.passed,
    onchange: () => { state.passed = toggle.checked; update("health"); } });
  const shown = data.verdicts.flatMap((list, i) => list.filter((each) => state.passed || each.level !== "good")
    .map((each) => make("div", { className: `verdict ${each.level}` },
      make("span", { className: "level" }, each.level === "good" ? "✓" : each.level === "bad" ? "✗" : "!", " ", each.name),
      data.runs.length > 1 ? make("span", { className: "dim" }, `${data.runs[i].name}: `) : null,
      make("span", {}, each.evidence, each.step === null ? "." : `; from step ${each.step} on.`),
      each.advice ? make("div", {}, each.advice) : null,
      each.option ? make("div", { className: "remedy" }, make("code", {}, each.option), ` → ${each.value}`) : null)));
  return [make("div", { className: "controls" }, control(`show the ${passed} checks that passed`, toggle)),
    shown.length || passed ? null : make("p", { className: "hint" }, "There are too few metrics for a verdict."),
    shown.length || !passed ? null : make("p", { className: "hint" }, "No check found a problem."), ...shown];
}

// ---- curves
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = null;
  return values.map((value) => (value === null ? null : (mean = mean === null ? value : weight * mean + (1 - weight) * value)));
}
/** Return the limits of an axis; uPlot would put a constant 0 at the bottom of 0 to 100. */
function range(plot, low, high) {
  if (low === null || high === null) return [0, 1];
  const margin = Math.abs(low) / 10 || 1;
  return low === high ? [low - margin, high + margin] : uPlot.rangeNum(low, high, 0.1, true);
}
function draw(box, chart) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--dim"), grid = { stroke: style.getPropertyValue("--line"), width: 1 };
  const tables = [], series = [{ label: "step" }], bands = [];
  const many = data.variants.length > 1;
  for (const curve of chart.curves) {
    const stroke = colour(curve.variant + (many ? 0 : curve.evaluation ? 1 : 0));
    const label = [many ? data.variants[curve.variant].label : "", curve.label].filter(Boolean).join(", ");
    const sparse = curve.steps.length < 60;
    tables.push([curve.steps, smoothed(curve.values, curve.evaluation ? 0 : state.smooth)]);
    series.push({ label, stroke, width: 1.5, spanGaps: true, dash: curve.evaluation && many ? [6, 4] : undefined,
      points: { show: curve.evaluation && sparse, size: 5, fill: stroke }, value: (_, value) => number(value) });
    if (curve.low) {
      const last = series.length;
      tables.push([curve.steps, curve.low], [curve.steps, curve.high]);
      for (const part of ["lowest", "highest"]) series.push({ label: part, class: "band", stroke: "transparent",
        width: 0, spanGaps: true, points: { show: false }, value: (_, value) => number(value) });
      bands.push({ series: [last + 1, last], fill: `${stroke}33` });
    }
  }
  const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui" };
  new uPlot({ width: Math.max(280, box.clientWidth - 16), height: 200, series, bands, scales: { x: { time: false }, y: { range } },
    cursor: { sync: { key: "steps" } }, axes: [{ ...axis, size: 30 }, { ...axis, size: 60, values: (_, ticks) => ticks.map(number) }] },
    uPlot.join(tables), box);
}
let watcher = null;
function curves() {
  if (watcher) watcher.disconnect();
  const waiting = new Map();
  watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      watcher.unobserve(entry.target);
      draw(entry.target, waiting.get(entry.target));
    }
  }, { rootMargin: "300px" });
  return data.groups.map((group) => {
    const charts = group.charts.filter((chart) => chart.name.toLowerCase().includes(state.metric));
    if (!charts.length) return null;
    return make("div", { className: "group" }, make("h3", {}, group.title), make("p", { className: "hint" }, group.hint),
      make("div", { className: "charts" }, charts.map((chart) => {
        const box = make("div", { className: "chart", "data-metric": chart.name }, make("div", { className: "name" }, chart.name));
        waiting.set(box, chart);
        watcher.observe(box);
        return box;
      })));
  });
}
function curveControls() {
  const name = make("input", { id: "metric", placeholder: "kl", value: state.metric,
    oninput: () => { state.metric = name.value.toLowerCase(); update("curves"); } });
  const smooth = make("input", { id: "smooth", type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth,
    onchange: () => { state.smooth = Number(smooth.value); update("curves"); } });
  return make("div", { className: "controls" }, control("metrics whose name contains", name), control("smoothing of training curves", smooth),
    make("span", { className: "dim" }, "Drag in a chart to zoom, double-click to zoom out."));
}

// ---- several runs
function comparison() {
  if (data.runs.length < 2) return [];
  const parts = [make("h3", {}, "Options that differ")];
  const rows = data.options.filter((row) => row.differs);
  parts.push(table(["option", ...data.runs.map((run) => run.name)], rows.map((row) => [[row.path, ...row.values]])));
  if (data.differences.length) {
    parts.push(make("h3", {}, `Paired differences from ${data.variants[0].label}`), make("p", { className: "hint" },
      "Each row compares pairs: the same seed in both, or the same evaluation prompt. The number of a run is the mean of the last fifth of the "
      + "metric; the interval is Student's 95 % interval of the mean difference."));
    parts.push(table(["runs", "metric", "pairs", data.variants[0].label, "this", "difference", ""], data.differences.map((each) => [[
      data.variants[each.variant].label, each.name, `${each.count} ${each.pairs}`, number(each.a), number(each.b),
      number(each.mean) + (each.half_width === null ? "" : ` ± ${number(each.half_width)}`), each.verdict]]), (i) => i > 2 && i < 6));
  }
  parts.push(make("h3", {}, "Mean of the last fifth of the steps"), table(["metric", ...data.runs.map((run) => run.name)],
    data.ends.map((row) => [[row.name, ...row.values.map(number)]]), (i) => i > 0));
  return parts;
}

// ---- completions and rollouts
const sources = () => Object.entries(data.samples[state.run]).filter(([, samples]) => samples.rows.length);
function stepsOf(samples) {
  return [...new Set(samples.rows.map((row) => row.step))];
}
function chips(row) {
  const parts = Object.entries(row.numbers).map(([name, value]) => make("span", {}, `${name} `, make("b", {}, number(value)), "  "));
  return make("div", { className: "scores" }, parts, row.ended === false ? make("span", { className: "cut" }, "truncated ") : null,
    row.sampling ? make("span", {}, row.sampling) : null);
}
function promptOf(row) {
  if (!row.messages.length) return make("div", { className: "text prompt" }, row.prompt);
  return make("div", { className: "prompt" }, row.messages.map(([role, text]) => make("div", { className: `message ${role === "assistant" ? role : ""}` },
    make("div", { className: "role" }, role), make("div", { className: "text" }, text))));
}
function answer(title, row) {
  return make("div", { className: "answer" }, make("div", { className: "dim" }, title), chips(row), make("div", { className: "text output" }, row.output));
}
/** Return the rows of the first evaluation by prompt, sampling and position among equal prompts. */
function keyed(rows) {
  const seen = new Map();
  return rows.map((row) => {
    const key = `${row.sampling}\u0000${row.prompt}`;
    seen.set(key, (seen.get(key) || 0) + 1);
    return [`${key}\u0000${seen.get(key)}`, row];
  });
}
function matches(row) {
  const haystack = [row.prompt, row.output, row.columns, ...row.messages.map(([, text]) => text)].join("\n").toLowerCase();
  return (!state.text || haystack.includes(state.text)) && (!state.cut || row.ended === false)
    && (state.group === "" || String(row.group) === state.group);
}
function cards() {
  const samples = data.samples[state.run][state.source];
  const steps = stepsOf(samples), first = steps[0];
  const rows = keyed(samples.rows.filter((row) => row.step === state.step)).filter(([, row]) => matches(row));
  const reward = ([, row]) => (row.numbers.reward === undefined ? -Infinity : row.numbers.reward);
  if (state.sort !== "file") rows.sort((a, b) => (reward(a) - reward(b)) * (state.sort === "worst" ? 1 : -1));
  const count = make("p", { className: "hint", id: "count" }, `${rows.length} of the ${samples.rows.filter((row) => row.step === state.step).length} shown at step ${state.step}`
    + `; the file has ${samples.num_rows} rows of ${samples.num_steps} steps` + (samples.num_rows > samples.rows.length ? ", of which this page has a selection" : ""));
  const drawn = state.source === "completions" ? besideFirst(rows, samples, first) : inGroups(rows);
  const more = drawn.length > state.more
    ? make("button", { id: "more", onclick: () => { state.more *= 2; update("texts"); } }, `show more of ${drawn.length}`) : null;
  return [count, ...drawn.slice(0, state.more).map((build) => build()), more];
}
function besideFirst(rows, samples, first) {
  const before = new Map(keyed(samples.rows.filter((row) => row.step === first)));
  return rows.map(([key, row]) => () => make("div", { className: "card" }, promptOf(row),
    row.columns ? make("div", { className: "dim" }, row.columns) : null,
    make("div", { className: "columns" }, row.step !== first && before.has(key) ? answer(`step ${first}, ${FIRST_EVALUATION}`, before.get(key)) : null,
      answer(`step ${row.step}`, row))));
}
function inGroups(rows) {
  const groups = new Map();
  for (const [key, row] of rows) {
    const name = row.group === null ? key : `group ${row.group}`;
    groups.set(name, [...(groups.get(name) || []), row]);
  }
  return [...groups.values()].map((members) => () => make("div", { className: "card" },
    members[0].group === null ? null : make("b", {}, `group ${members[0].group}`), promptOf(members[0]),
    members[0].columns ? make("div", { className: "dim" }, members[0].columns) : null,
    make("div", { className: "columns" }, members.map((row, i) => answer(members.length > 1 ? `response ${i + 1}` : `step ${row.step}`, row)))));
}
function texts() {
  const present = sources();
  const change = (key, redraw) => (value) => { state[key] = value; state.more = SHOWN_AT_ONCE; redraw(); };
  const again = () => update("texts");
  const run = data.runs.length > 1 ? control("run", select("run", String(state.run), data.runs.map((each, i) => [String(i), each.name]),
    (value) => { state.run = Number(value); state.step = null; again(); })) : null;
  if (!present.length) return [make("div", { className: "controls" }, run),
    make("p", { className: "hint" }, "The run has neither completions of evaluations nor rollouts.")];
  if (!present.some(([name]) => name === state.source)) state.source = present[0][0];
  const samples = data.samples[state.run][state.source], steps = stepsOf(samples);
  if (!steps.includes(state.step)) state.step = steps[steps.length - 1];
  const groups = [...new Set(samples.rows.filter((row) => row.step === state.step && row.group !== null).map((row) => String(row.group)))];
  if (!groups.includes(state.group)) state.group = "";
  const body = make("div", {});
  const redraw = () => body.replaceChildren(...cards().filter(Boolean));
  drawers.cards = redraw;
  const search = make("input", { id: "search", placeholder: "text", value: state.text,
    oninput: () => change("text", redraw)(search.value.toLowerCase()) });
  const cut = make("input", { id: "cut", type: "checkbox", checked: state.cut, onchange: () => change("cut", redraw)(cut.checked) });
  redraw();
  return [make("div", { className: "controls" }, run,
    control("of", select("source", state.source, present.map(([name]) => [name, name === "completions" ? "evaluations" : "training rollouts"]),
      (value) => { state.source = value; state.step = null; again(); })),
    control("step", select("step", String(state.step), steps.map((step) => [String(step), String(step)]), (value) => change("step", again)(Number(value)))),
    groups.length ? control("group", select("group", state.group, [["", "all"], ...groups.map((name) => [name, name])], change("group", redraw))) : null,
    control("order", select("sort", state.sort, [["file", "as sampled"], ["best", "highest reward first"], ["worst", "lowest reward first"]], change("sort", redraw))),
    control("containing", search), control("truncated only", cut)), body];
}

// ---- images and options
function images() {
  return data.runs.filter((run) => run.images.length).map((run) => make("div", {}, data.runs.length > 1 ? make("h3", {}, run.name) : null,
    make("div", { className: "images" }, run.images.map((image) => make("figure", {}, make("img", { src: image.url, alt: image.name }),
      make("figcaption", { className: "dim" }, image.name))))));
}
function notes() {
  return data.runs.flatMap((run) => run.texts.map((each) => make("div", {},
    make("h3", {}, data.runs.length > 1 ? `${run.name}: ${each.name}` : each.name), make("div", { className: "text" }, each.text))));
}
function options() {
  const name = make("input", { id: "option", placeholder: "trainer.", value: state.option,
    oninput: () => { state.option = name.value.toLowerCase(); redraw(); } });
  const all = make("input", { id: "all", type: "checkbox", checked: state.all, onchange: () => { state.all = all.checked; redraw(); } });
  const body = make("div", {});
  const redraw = () => body.replaceChildren(table(["option", ...data.runs.map((run) => (data.runs.length > 1 ? run.name : "value")), "default", "meaning"],
    data.options.filter((row) => (state.all || row.changed) && row.path.toLowerCase().includes(state.option)).map((row) => [
      [make("code", {}, row.path), ...row.values.map((value) => make("code", {}, value)), make("code", {}, row.default === null ? "" : row.default), row.meaning],
      row.changed ? "changed" : ""])));
  redraw();
  return [make("div", { className: "controls" }, control("options whose name contains", name),
    control("show those at their defaults too", all)), body];
}

// ---- two versions of the code
function bench() {
  const { versions, method, measures, failures } = data.bench;
  return [...versions.map((text, i) => make("div", {}, make("span", { className: "dot", style: `background:${colour(i)}` }), text)),
    table(["case", "measure", ...data.variants.map((each) => each.label), "change", "seeds", "could be seen", ""], measures.map((each) => [[
      each.case, each.name, number(each.before), number(each.after), each.change, String(each.count), each.visible, make("b", {}, each.word)],
    `measure ${each.word}`]), (i) => i > 1 && i < 7), make("p", { className: "hint" }, method),
    ...failures.map((text) => make("pre", { className: "note failure" }, text))];
}

function build() {
  const parts = [["curves", "Curves", curves]];
  if (data.runs.length) parts.unshift(["health", "Health", health]);
  if (data.bench) parts.unshift(["bench", "Better, same or worse", bench]);
  if (data.runs.length > 1) parts.unshift(["comparison", "Comparison", comparison]);
  if (data.runs.some((run) => run.images.length)) parts.push(["images", "Images", images]);
  if (data.runs.some((run) => run.texts.length)) parts.push(["notes", "From plugins", notes]);
  if (data.runs.length) parts.push(["texts", "Completions", texts], ["options", "Configuration", options]);
  const sections = parts.map(([name, title, drawIt]) => section(name, title, drawIt));
  sections[parts.findIndex(([name]) => name === "curves")].querySelector("h2").after(curveControls());
  page.replaceChildren(make("nav", {}, parts.map(([name, title]) => make("a", { href: `#${name}` }, title))),
    make("h1", {}, data.title ? data.title : data.runs.length > 1 ? `${data.runs.length} runs` : data.runs[0].name),
    make("div", { className: "dim", id: "written" }, `rlcore ${data.version}, ${data.written}`), ...runCards().flat(), ...sections);
}
build();

// ---- a page that the local server wrote asks it for newer data
const live = document.body.dataset.live;
if (live) {
  setInterval(async () => {
    try {
      const answered = await fetch(live);
      if (!answered.ok) return;
      const newer = await answered.json();
      if (newer.stamp === data.stamp) return;
      const place = window.scrollY, latest = stepIsLatest();
      data = newer;
      if (latest) state.step = null;
      build();
      window.scrollTo(0, place);
    } catch (error) {
      document.getElementById("written").textContent = "the server has ended; the page shows what it last sent";
    }
  }, 3000);
}
function stepIsLatest() {
  const samples = (data.samples[state.run] || {})[state.source];
  return !samples || state.step === stepsOf(samples).at(-1);
}
