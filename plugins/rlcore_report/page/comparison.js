// Several runs side by side, the configuration, the grids of images, and texts of plugins.
/** A table whose first rows are seen at once, and whose others are folded. */
function Folded({ caption, rows, isFirst, ...rest }) {
  const first = rows.filter(isFirst), others = rows.filter((row) => !isFirst(row));
  if (!first.length) return html`<${Table} caption=${caption} rows=${others} ...${rest} />`;
  return html`<${Table} caption=${caption} rows=${first} ...${rest} />${others.length ? html`<details class="others"><summary>${others.length} more ${others.length === 1 ? "metric" : "metrics"}</summary>
    <${Table} caption=${`other ${caption}`} rows=${others} ...${rest} /></details>` : null}`;
}
function Comparison() {
  const { main } = store.data, isMain = (name) => name === main || name === "reward of the last evaluation";
  const { runs, options, differences, variants, ends } = store.data, names = runs.map((run) => run.name);
  const rows = options.filter((row) => row.differs);
  const missing = html`<span class="dim" title="this run has no such option">no such option</span>`;
  return html`<${Section} id="comparison" title="Comparison"><h3>Options that differ</h3>
    ${rows.length ? html`<${Table} caption="options that differ" head=${["option", ...names]}
      rows=${rows.map((row) => [[html`<code>${row.path}</code>`, ...row.values.map((value) => (value === "" ? missing : html`<${Code} text=${value} />`))]])} />` : html`<p class="hint">None.</p>`}
    ${options.some((row) => row.values.includes("")) ? html`<p class="hint">An option that only some of the runs have is listed if it is changed.</p>` : null}
    ${differences.length ? html`<h3>Paired differences from ${variants[0].label}</h3><p class="hint">Each row compares pairs: the same seed in both, or the same
      evaluation prompt. The number of a run is the mean of the last fifth of the metric; the interval is Student's 95 % interval of the mean difference.</p>
      <${Folded} caption="paired differences" isFirst=${([cells]) => isMain(cells[1])} names=${2} head=${["runs", "metric", "pairs", variants[0].label, "this", "difference", ""]} numeric=${(i) => i > 2 && i < 6}
        rows=${differences.map((each) => [[variants[each.variant].label, each.name, `${each.count} ${each.pairs}`, number(each.a), number(each.b),
    number(each.mean) + (each.half_width === null ? "" : ` ± ${number(each.half_width > 1e-9 * Math.abs(each.mean) ? each.half_width : 0)}`), each.verdict]])} />` : null}
    <h3>Mean of the last fifth of the steps</h3><${Folded} caption="ends" isFirst=${([cells]) => isMain(cells[0])} head=${["metric", ...names]} numeric=${(i) => i > 0}
      rows=${ends.map((row) => [[row.name, ...row.values.map(number)]])} /><//>`;
}
function Options() {
  const { runs, options } = store.data, matches = matcher(view.option);
  const rows = options.filter((row) => (view.all || row.changed) && matches(row.path));
  return html`<${Section} id="options" title="Configuration"><div class="controls">
    <${Typed} id="option" label="options" value=${view.option} placeholder="^trainer" pattern change=${(option) => setView({ option })} />
    <${Check} id="all" label="show those at their defaults too" value=${view.all} change=${(all) => setView({ all })} /></div>
    <${Table} caption="options" head=${["option", ...runs.map((run) => (runs.length > 1 ? run.name : "value")), "default", "meaning"]}
      rows=${rows.map((row) => [[html`<code>${row.path}</code>`, ...row.values.map((value) => html`<${Code} text=${value} />`), row.default === null ? "" : html`<${Code} text=${row.default} />`, row.meaning],
    row.changed ? "changed" : ""])} /><//>`;
}
function Notes() {
  return html`<${Section} id="notes" title="From plugins">${store.data.runs.flatMap((run) => run.texts.map((each) => html`<div key=${`${run.folder} ${each.name}`}>
    <h3>${store.data.runs.length > 1 ? `${run.name}: ${each.name}` : each.name}</h3><${Words} text=${each.text} /></div>`))}<//>`;
}

const captionOf = (name) => {
  const step = /^step-0*(\d+)$/.exec(name);
  return step ? `evaluation at step ${step[1]}` : name;
};
const allImages = () => store.data.runs.flatMap((run, i) => run.images.map((image) => ({ ...image, key: `${i} ${image.name}`,
  caption: `${store.data.runs.length > 1 ? `${run.name}, ` : ""}${captionOf(image.name)}` })));
/** A grid of images. One with far more columns than rows keeps its height, and is scrolled. */
function Grid({ image }) {
  const fit = ({ currentTarget }) => currentTarget.classList.toggle("strip", currentTarget.naturalWidth > 6 * currentTarget.naturalHeight);
  return html`<img key=${image.key} src=${image.url} alt=${`grid of images, ${image.caption}`} onload=${fit} />`;
}
function Images() {
  return html`<${Section} id="images" title="Images"><p class="hint">The same prompts and the same noise at each evaluation.</p><div class="images">
    ${allImages().map((image) => html`<figure key=${image.key}><button class="bare" aria-label=${`enlarge ${image.caption}`} onclick=${() => setView({ image: image.key })}>
      <${Grid} image=${image} /></button><figcaption>${image.caption}</figcaption></figure>`)}</div><//>`;
}
function LargeImage() {
  const images = allImages(), at = images.findIndex((image) => image.key === view.image), box = useRef();
  useDialogFocus(box, view.image, "button");
  if (at < 0) return null;
  const go = (by) => setView({ image: images[(at + by + images.length) % images.length].key });
  const press = (event) => {
    if (event.key === "ArrowRight") go(1);
    if (event.key === "ArrowLeft") go(-1);
  };
  return html`<div class="overlay picture" role="dialog" aria-modal="true" aria-label=${images[at].caption} ref=${box} onkeydown=${press}>
    <div class="controls"><button onclick=${() => setView({ image: "" })}>close</button><button onclick=${() => go(-1)}>earlier</button><button onclick=${() => go(1)}>later</button>
      <span>${images[at].caption}</span></div><${Grid} key=${images[at].key} image=${images[at]} /></div>`;
}
