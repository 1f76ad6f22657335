// The curves of a chart as the view wants them, and the chart that uPlot draws of them.
const AXES = { step: "step", tokens: "tokens", time: "seconds" };
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(13).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
const PAPER = 660; // pixels of width that a sheet of A4 or Letter has room for
const NEAR = 3; // pixels within which a curve's own step counts as the step under the pointer

function smoothed(values, weight) {
  if (!weight) return values;
  let mean = null;
  return values.map((value) => (value === null ? null : (mean = mean === null ? value : weight * mean + (1 - weight) * value)));
}
/** Return where steps lie on the chosen axis, interpolated between the steps for which that is known. */
function onAxis(curve) {
  if (view.x === "step") return curve.steps;
  const axis = (store.data.variants[curve.variant].axes || {})[view.x];
  if (!axis || !axis.steps.length) return null;
  let place = 0;
  const { steps, values } = axis, end = steps.length - 1;
  return curve.steps.map((step) => {
    while (place < end && steps[place + 1] <= step) place += 1;
    if (step <= steps[0]) return step < steps[0] ? 0 : values[0];
    if (place === end) return values[end];
    const share = (step - steps[place]) / (steps[place + 1] - steps[place]);
    return values[place] + share * (values[place + 1] - values[place]);
  });
}
/** Return the curves of a chart that are shown. */
function shownCurves(chart) {
  const many = store.data.variants.length > 1, kept = view.log ? (value) => (value > 0 ? value : null) : (value) => value;
  return chart.curves.filter((curve) => !view.hide.includes(store.data.variants[curve.variant].label)).map((curve) => {
    const xs = onAxis(curve);
    return xs && {
      xs, steps: curve.steps, evaluation: curve.evaluation, variant: many ? curve.variant : curve.evaluation ? 1 : 0, many,
      label: [many ? store.data.variants[curve.variant].label : "", curve.label].filter(Boolean).join(", "),
      values: smoothed(curve.values, curve.evaluation ? 0 : view.smooth).map(kept),
      low: curve.low && curve.low.map(kept), high: curve.high && curve.high.map(kept),
    };
  }).filter(Boolean);
}
const hasPoints = (curve) => curve.values.some((value) => value !== null);

/** Return the table of uPlot: one column of x, then of each curve its values and the edges of its band. */
function columnsOf(curves) {
  const tables = curves.flatMap((curve) => [[curve.xs, curve.values], ...(curve.low ? [[curve.xs, curve.low], [curve.xs, curve.high]] : [])]);
  return tables.length ? uPlot.join(tables) : [[]];
}
/** Return the limits of an axis; uPlot would put a constant 0 at the bottom of 0 to 100. */
function limits(plot, low, high) {
  if (low === null || high === null) return [0, 1];
  const margin = Math.abs(low) / 10 || 1;
  return low === high ? [low - margin, high + margin] : uPlot.rangeNum(low, high, 0.1, true);
}
/** Return the index of a curve's own point under the pointer; null if it has none there. */
function ownIndex(plot, series, hovered) {
  const values = plot.data[series], xs = plot.data[0];
  if (values[hovered] !== null && values[hovered] !== undefined) return hovered;
  const place = plot.valToPos(xs[hovered], "x");
  for (const direction of [-1, 1]) {
    for (let i = hovered + direction; i >= 0 && i < xs.length && Math.abs(plot.valToPos(xs[i], "x") - place) <= NEAR; i += direction) {
      if (values[i] !== null && values[i] !== undefined) return i;
    }
  }
  return null;
}
/** Draw curves into a box, and call `hover` with the plot when the pointer moves. */
function plotInto(box, curves, { height, hover, zoomTo }) {
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--dim");
  const grid = { stroke: style.getPropertyValue("--line"), width: 1 }, series = [{}], bands = [];
  for (const curve of curves) {
    const stroke = style.getPropertyValue(`--c${curve.variant % COLOURS}`).trim();
    const dash = dashOf(curve.variant).split(" ").filter(Boolean).map(Number);
    const alone = curve.values.filter((value) => value !== null).length === 1;
    series.push({ stroke, dash: dash.length ? dash : undefined, width: curve.evaluation && curve.many ? 1 : 1.75, spanGaps: true,
      points: { show: alone || (curve.evaluation && curve.xs.length < 60), size: 6, fill: stroke } });
    if (curve.low) {
      const last = series.length;
      for (let i = 0; i < 2; i += 1) series.push({ stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
      bands.push({ series: [last + 1, last], fill: `${stroke}33` });
    }
  }
  const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui" };
  const logs = view.log && curves.some(hasPoints);
  return new uPlot({
    width: printing ? PAPER : box.clientWidth || 300, height, series, bands, legend: { show: false }, hooks: { setCursor: [hover], setSelect: [zoomTo] },
    scales: { x: { time: false }, y: logs ? { distr: 3 } : { range: limits } },
    cursor: { sync: { key: "x", filters: { pub: (kind) => !kind.startsWith("mouseup") && !kind.startsWith("mousedown") } },
      dataIdx: ownIndex, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => null } },
    axes: [{ ...axis, size: 32, incrs: view.x === "step" ? WHOLE : undefined, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : large(tick))) },
      { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
  }, columnsOf(curves), box);
}
