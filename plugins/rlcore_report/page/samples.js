// Completions of evaluations beside those of the first, and training rollouts by group.
const FIRST_EVALUATION = "first evaluation";
const stepsOf = (samples) => [...new Set(samples.rows.map((row) => row.step))];

function Scores({ row }) {
  return html`<div class="scores">${Object.entries(row.numbers).map(([name, value]) => html`<span key=${name}>${name} <b>${number(value)}</b></span>`)}
    ${row.ended === false ? html`<span class="cut">truncated</span>` : null}${row.sampling ? html`<span>${row.sampling}</span>` : null}</div>`;
}
/** Show the images that a prompt names, as far as the run has small copies of them. */
function Thumbnails({ row }) {
  const { thumbnails } = store.data.runs[Math.min(view.at, store.data.runs.length - 1)];
  const names = [...new Set([...row.prompt.matchAll(/<image:([0-9a-f]{8})>/g)].map(([, name]) => name))].filter((name) => thumbnails[name]);
  return names.length ? html`<div class="images">${names.map((name) => html`<img key=${name} src=${thumbnails[name]} alt=${`image ${name}`} title=${name} />`)}</div>` : null;
}
function Prompt({ row }) {
  return html`<div class="prompt"><${Thumbnails} row=${row} />${row.messages.length ? html`<${Turns} turns=${row.messages} />` : html`<${Words} text=${row.prompt} />`}</div>`;
}
function Output({ title, row }) {
  const { turns } = row;
  return html`<div class="answer"><div class="dim">${title}</div><${Scores} row=${row} />
    ${turns.length ? html`<div class="output turns"><${Turns} turns=${turns} /></div>` : row.messages.length
    ? html`<div class="message assistant"><div class="role">assistant</div><${Words} text=${row.output} name="output" /></div>` : html`<${Words} text=${row.output} name="output" />`}</div>`;
}
/** Return the rows by prompt, sampling and position among equal prompts. */
function keyed(rows) {
  const seen = new Map();
  return rows.map((row) => {
    const key = `${row.sampling}\u0000${row.prompt}`;
    seen.set(key, (seen.get(key) || 0) + 1);
    return [`${key}\u0000${seen.get(key)}`, row];
  });
}
function contains(row) {
  const haystack = [row.prompt, row.output, row.columns, ...row.messages.map(([, text]) => text), ...row.turns.map(([, text]) => text)].join("\n").toLowerCase();
  return (!view.text || haystack.includes(view.text.toLowerCase())) && (!view.cut || row.ended === false) && (view.group === "" || String(row.group) === view.group);
}
function besideFirst(rows, samples, step) {
  const first = stepsOf(samples)[0], before = new Map(keyed(samples.rows.filter((row) => row.step === first)));
  return rows.map(([key, row]) => html`<div class="card" key=${key}><${Prompt} row=${row} />${row.columns ? html`<div class="dim">${row.columns}</div>` : null}
    <div class="columns">${step !== first && before.has(key) ? html`<${Output} title=${`step ${first}, ${FIRST_EVALUATION}`} row=${before.get(key)} />` : null}
      <${Output} title=${`step ${step}`} row=${row} /></div></div>`);
}
function inGroups(rows) {
  const groups = new Map();
  for (const [key, row] of rows) {
    const name = row.group === null ? key : `group ${row.group}`;
    groups.set(name, [...(groups.get(name) || []), row]);
  }
  return [...groups].map(([name, members]) => html`<div class="card" key=${name}>${members[0].group === null ? null : html`<b>group ${members[0].group}</b>`}
    <${Prompt} row=${members[0]} />${members[0].columns ? html`<div class="dim">${members[0].columns}</div>` : null}
    <div class="columns">${members.map((row, i) => html`<${Output} key=${i} title=${members.length > 1 ? `response ${i + 1}` : `step ${row.step}`} row=${row} />`)}</div></div>`);
}
function Cards({ samples, step, source }) {
  const ofStep = samples.rows.filter((row) => row.step === step), rows = keyed(ofStep).filter(([, row]) => contains(row));
  const reward = ([, row]) => (typeof row.numbers.reward === "number" ? row.numbers.reward : -Infinity);
  if (view.sort !== "file") rows.sort((a, b) => (reward(a) - reward(b)) * (view.sort === "worst" ? 1 : -1));
  const drawn = source === "completions" ? besideFirst(rows, samples, step) : inGroups(rows);
  return html`<p class="hint" id="count">${rows.length} of the ${ofStep.length} shown at step ${step}; the file has ${samples.num_rows} rows of ${samples.num_steps} steps${
    samples.num_rows > samples.rows.length ? ", of which this page has a selection" : ""}</p>${drawn.slice(0, view.more)}
    ${drawn.length > view.more ? html`<button id="more" onclick=${() => setView({ more: view.more * 2 })}>show more of ${drawn.length}</button>` : null}`;
}
function Texts() {
  const { runs, samples: all } = store.data, at = Math.min(view.at, runs.length - 1);
  const present = Object.entries(all[at]).filter(([, samples]) => samples.rows.length).map(([name]) => name);
  const change = (key) => (value) => setView({ [key]: value, more: SHOWN_AT_ONCE });
  const run = runs.length > 1 ? html`<${Choice} id="run" label="run" value=${String(at)} choices=${runs.map((each, i) => [String(i), each.name])}
    change=${(value) => setView({ at: Number(value), step: "", group: "" })} />` : null;
  if (!present.length) {
    return html`<${Section} id="texts" title="Completions"><div class="controls">${run}</div>
      <p class="hint">The run has neither completions of evaluations nor rollouts.</p><//>`;
  }
  const source = present.includes(view.source) ? view.source : present[0], samples = all[at][source], steps = stepsOf(samples);
  const step = steps.find((each) => String(each) === view.step) ?? steps[steps.length - 1];
  const groups = [...new Set(samples.rows.filter((row) => row.step === step && row.group !== null).map((row) => String(row.group)))];
  return html`<${Section} id="texts" title="Completions"><div class="controls">${run}
    <${Choice} id="source" label="of" value=${source} choices=${present.map((name) => [name, name === "completions" ? "evaluations" : "training rollouts"])}
      change=${(value) => setView({ source: value, step: "", group: "" })} />
    <${Choice} id="step" label="step" value=${String(step)} choices=${steps.map((each) => [String(each), String(each)])}
      change=${(value) => setView({ step: value === String(steps[steps.length - 1]) ? "" : value, group: "", more: SHOWN_AT_ONCE })} />
    ${groups.length ? html`<${Choice} id="group" label="group" value=${view.group} choices=${[["", "all"], ...groups.map((name) => [name, name])]} change=${change("group")} />` : null}
    <${Choice} id="sort" label="order" value=${view.sort} choices=${[["file", "as sampled"], ["best", "highest reward first"], ["worst", "lowest reward first"]]} change=${change("sort")} />
    <${Typed} id="search" label="containing" value=${view.text} placeholder="text" change=${change("text")} />
    <${Check} id="cut" label="truncated only" value=${view.cut} change=${change("cut")} /></div>
    <${Cards} samples=${samples} step=${step} source=${source} /><//>`;
}
