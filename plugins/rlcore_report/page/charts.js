// Charts: what surrounds a plot, so that it is reached by keyboard, read aloud, enlarged and saved as a table.
const waiting = new WeakMap();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    watcher.unobserve(entry.target);
    waiting.get(entry.target)();
  }
}, { rootMargin: "400px" });

/** Return a sentence on each curve, for those who do not see them. */
function inWords(chart, curves) {
  const each = curves.filter(hasPoints).map((curve) => {
    const known = curve.values.map((value, i) => [value, curve.xs[i]]).filter(([value]) => value !== null);
    const values = known.map(([value]) => value), [first, last] = [known[0], known[known.length - 1]];
    return `${curve.label}: from ${number(first[0])} at ${AXES[view.x]} ${number(first[1])} to ${number(last[0])} at ${AXES[view.x]} ${number(last[1])}, `
      + `lowest ${number(values.reduce((a, b) => Math.min(a, b)))}, highest ${number(values.reduce((a, b) => Math.max(a, b)))}`;
  });
  return `${chart.name}. ${each.join("; ") || "no value"}.`;
}
function csvOf(chart, curves) {
  const [xs, ...columns] = uPlot.join(curves.length ? curves.map((curve) => [curve.xs, curve.values]) : [[[], []]]);
  const [from, to] = view.zoom.length ? view.zoom : [-Infinity, Infinity];
  const head = [AXES[view.x], ...curves.map((curve) => `${chart.name}, ${curve.label}`)];
  const rows = xs.map((x, i) => [x, ...curves.map((_, column) => columns[column][i])]).filter(([x]) => x >= from && x <= to);
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}
function Chart({ chart, kind }) {
  const box = useRef(), plot = useRef(null), values = useRef([]), place = useRef(), drawn = useRef("");
  const [near, setNear] = useState(false);
  const curves = shownCurves(chart), height = kind === "full" ? Math.max(200, innerHeight - 150 - 26 * curves.length) : kind === "large" ? 300 : 200;
  const latest = useRef({});
  latest.current = { curves };
  const hover = (shown) => {
    const { idx, idxs } = shown.cursor;
    let series = 1;
    latest.current.curves.forEach((curve, i) => {
      const own = idx === null || idx === undefined || !idxs ? null : idxs[series];
      const value = own === null || own === undefined ? null : shown.data[series][own];
      const edges = own !== null && own !== undefined && curve.low ? ` (${number(shown.data[series + 1][own])} to ${number(shown.data[series + 2][own])})` : "";
      const elsewhere = own !== null && own !== undefined && own !== idx ? ` at ${number(shown.data[0][own])}` : "";
      if (values.current[i]) values.current[i].textContent = value === null || value === undefined ? "" : `${number(value)}${edges}${elsewhere}`;
      series += curve.low ? 3 : 1;
    });
    if (place.current) place.current.textContent = idx === null || idx === undefined ? "" : `${AXES[view.x]} ${number(shown.data[0][idx])}`;
  };
  const zoomTo = (shown) => {
    if (shown.select.width < 3) return;
    const ends = [shown.select.left, shown.select.left + shown.select.width].map((at) => Number(shown.posToVal(at, "x").toPrecision(6)));
    shown.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    setView({ zoom: ends });
  };
  const isWaiting = !near && !printing && kind !== "full";
  useLayoutEffect(() => {
    waiting.set(box.current, () => setNear(true));
    watcher.observe(box.current);
    const resizer = new ResizeObserver(() => {
      const { current } = plot, width = box.current.clientWidth;
      if (current && width && Math.abs(width - current.width) > 1) current.setSize({ width, height: current.height });
    });
    resizer.observe(box.current);
    return () => {
      watcher.unobserve(box.current);
      resizer.disconnect();
      if (plot.current) plot.current.destroy();
    };
  }, []);
  useLayoutEffect(() => {
    if (isWaiting) return;
    const form = JSON.stringify([curves.map((curve) => [curve.label, curve.variant, Boolean(curve.low), curve.evaluation && curve.xs.length < 60]),
      view.log && curves.some(hasPoints), view.x, scheme.matches, printing, height]);
    const content = JSON.stringify([form, store.data.stamp, view.smooth, view.log, view.hide, view.zoom]);
    if (content === drawn.current.content) return;
    if (form !== drawn.current.form || !plot.current) {
      if (plot.current) plot.current.destroy();
      plot.current = plotInto(box.current, curves, { height, hover, zoomTo });
      plot.current.over.addEventListener("dblclick", () => setView({ zoom: [] }));
      if (view.zoom.length) plot.current.setScale("x", { min: view.zoom[0], max: view.zoom[1] });
    } else {
      plot.current.setData(columnsOf(curves), !view.zoom.length);
      if (view.zoom.length) plot.current.setScale("x", { min: view.zoom[0], max: view.zoom[1] });
    }
    drawn.current = { form, content };
  });
  const move = (by) => {
    const { current } = plot, xs = current.data[0], now = current.cursor.idx;
    const target = Math.max(0, Math.min(xs.length - 1, now === null || now === undefined ? (by > 0 ? 0 : xs.length - 1) : now + by));
    current.setCursor({ left: current.valToPos(xs[target], "x"), top: current.over.clientHeight / 2 });
  };
  const press = (event) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey || !plot.current) return;
    const actions = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), PageDown: () => move(10), PageUp: () => move(-10),
      f: () => setView({ full: view.full ? "" : chart.name }), 0: () => setView({ zoom: [] }), "+": () => zoomAround(plot.current) };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  };
  const empty = !curves.some(hasPoints);
  return html`<figure class=${`chart ${kind || ""}`} data-metric=${chart.name} tabindex="0" role="group" aria-label=${inWords(chart, curves)} onkeydown=${press}>
    <figcaption><span class="name">${chart.name}</span><span class="place" ref=${place}></span><span class="tools">
      <button class="quiet" title="save what the chart shows as CSV" aria-label=${`CSV of ${chart.name}`} onclick=${() => download(`${chart.name}.csv`, csvOf(chart, curves))}>CSV</button>
      <button class="quiet" title=${view.full ? "close (Escape)" : "full screen (f)"} aria-label=${`${view.full ? "close" : "full screen of"} ${chart.name}`}
        onclick=${() => setView({ full: view.full ? "" : chart.name })}>${kind === "full" ? "close" : "enlarge"}</button></span></figcaption>
    <div class="plot" ref=${box} style=${`min-height: ${height}px`} aria-hidden="true"></div>
    ${empty ? html`<p class="hint">${view.log ? "No value above 0, which a logarithmic scale needs." : `No value over ${AXES[view.x]}.`}</p>` : null}
    <ul class="legend" aria-live="polite">${curves.map((curve, i) => html`<li key=${curve.label}><${Sample} variant=${curve.variant} points=${curve.evaluation} />
      <span>${curve.label}</span> <b ref=${(element) => { values.current[i] = element; }}></b></li>`)}</ul></figure>`;
}
function zoomAround(plot) {
  const { min, max } = plot.scales.x, at = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : (min + max) / 2;
  setView({ zoom: [at - (at - min) / 2, at + (max - at) / 2].map((value) => Number(value.toPrecision(6))) });
}
const allCharts = () => store.data.groups.flatMap((group) => group.charts);
function ChartControls({ prefix = "" }) {
  const axes = ["step", ...["tokens", "time"].filter((name) => store.data.variants.some((each) => (each.axes || {})[name]))];
  const matches = matcher(view.metric);
  const save = () => {
    const shown = allCharts().filter((chart) => matches(chart.name));
    download("curves.csv", shown.map((chart) => csvOf(chart, shownCurves(chart))).join("\n"));
  };
  return html`<div class="controls">${prefix ? null : html`<${Typed} id="metric" label="metrics" value=${view.metric} placeholder="kl|entropy" pattern change=${(metric) => setView({ metric })} />`}
    <${Choice} id=${`${prefix}x`} label="over" value=${view.x} choices=${axes.map((name) => [name, { step: "steps", tokens: "tokens", time: "time in steps" }[name]])}
      change=${(x) => setView({ x, zoom: [] })} />
    <${Check} id=${`${prefix}log`} label="log scale" value=${view.log} change=${(log) => setView({ log })} />
    <label>smoothing<input id=${`${prefix}smooth`} type="range" min="0" max="0.98" step="0.02" value=${view.smooth}
      oninput=${(event) => setView({ smooth: Number(event.currentTarget.value) })} /></label>
    ${prefix ? null : html`<button id="csv" onclick=${save}>CSV of all shown</button>`}
    ${view.zoom.length ? html`<button id=${`${prefix}unzoom`} onclick=${() => setView({ zoom: [] })}>whole range</button>` : html`<span class="dim">Drag in a chart to zoom.</span>`}</div>`;
}
function Toggles() {
  const { variants } = store.data;
  if (variants.length < 2) return null;
  const flip = (label) => setView({ hide: view.hide.includes(label) ? view.hide.filter((each) => each !== label) : [...view.hide, label] });
  return html`<div class="toggles" role="group" aria-label="runs shown">${variants.map((each, i) => html`<label key=${each.label}>
    <input type="checkbox" checked=${!view.hide.includes(each.label)} onchange=${() => flip(each.label)} /><${Sample} variant=${i} />${each.label}</label>`)}</div>`;
}
function Curves() {
  const { groups, headline = [] } = store.data, matches = matcher(view.metric), filtered = view.metric !== "";
  const first = headline.map((name) => allCharts().find((chart) => chart.name === name)).filter((chart) => chart && matches(chart.name));
  const rest = groups.map((group) => ({ ...group, charts: group.charts.filter((chart) => !headline.includes(chart.name) && matches(chart.name)) }));
  const flip = (title) => setView({ open: view.open.includes(title) ? view.open.filter((each) => each !== title) : [...view.open, title] });
  return html`<${Section} id="curves" title="Curves"><${ChartControls} /><${Toggles} />
    <div class="charts large">${first.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} kind="large" />`)}</div>
    ${rest.filter((group) => group.charts.length).map((group) => {
      const open = filtered || !headline.length || view.open.includes(group.title);
      return html`<div class="group" key=${group.title}><div class="fold"><h3><button aria-expanded=${open ? "true" : "false"} onclick=${() => flip(group.title)}>${group.title}</button></h3>
        <span class="dim">${group.charts.length === 1 ? "1 chart" : `${group.charts.length} charts`}${open ? "" : `: ${group.charts.map((chart) => chart.name).join(", ")}`}</span></div>
        ${open ? html`<p class="hint">${group.hint}</p><div class="charts">${group.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div>` : null}</div>`;
    })}<//>`;
}
function FullScreen() {
  const chart = view.full && allCharts().find((each) => each.name === view.full), box = useRef();
  useDialogFocus(box, view.full, "figure");
  return chart ? html`<div class="overlay" role="dialog" aria-modal="true" aria-label=${chart.name} ref=${box}><${ChartControls} prefix="full-" /><${Chart} key=${chart.name} chart=${chart} kind="full" /></div>` : null;
}
