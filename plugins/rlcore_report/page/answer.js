// The answer first: a card for each run, and the verdicts in full.
/** Return a difference with as many digits as its interval has a use for. */
function withInterval({ before, after, half }) {
  if (half === null) return signed(after - before);
  const digits = half > 1e-9 * Math.abs(after) ? Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(half)))) : 2;
  return `${after > before ? "+" : ""}${(after - before).toFixed(digits)} ± ${half.toFixed(digits)}`;
}
/** Return where a value is from: a step, or the first and the last of those that it is the mean of. */
const spanOf = ([first, last]) => (first === last ? `step ${first}` : `steps ${first} to ${last}`);
/** How a run ended; of one that ended early, in front of everything else, with what continues it. */
function End({ end }) {
  return html`<div class=${`end said ${end.level}`}>${end.level === "good" ? null : html`<span class="level">${SIGNS[end.level]}</span> `}${end.sentence}
    ${end.command ? html`<div class="best"><span class="dim">continue it with</span> <${Copied} text=${end.command} /></div>` : null}</div>`;
}
function Answer({ run, i }) {
  const { change, best, verdict, seconds, tokens, device } = run.answer;
  const late = change && change.metric.startsWith("eval/") && change.spans[0][0] > 0;
  const facts = [[seconds === null ? "" : `${duration(seconds)} in steps`],
    [tokens === null ? "" : `${large(tokens)} tokens`], [device], [run.seed === null ? "" : `seed ${run.seed}`]].map((parts) => parts.filter(Boolean).join(", ")).filter(Boolean);
  return html`<article class="answer-card" aria-label=${run.name}>
    <div class="whose">${store.data.variants.length > 1 ? html`<${Sample} variant=${run.variant} />` : null}<b>${run.name}</b> <span class="dim">${run.trainer}, ${run.model}</span></div>
    <${End} end=${run.end} />
    ${change ? html`<div class="change" title=${change.basis ? `95 % interval of the difference, by Student's t, over ${change.basis}` : ""}>
      <span class="metric">${change.metric}</span> <span class="figures">${number(change.before)} → <b>${number(change.after)}</b></span>${" "}
      <span class="dim">${withInterval(change)}${change.basis ? ` over ${change.basis}` : ""}, ${spanOf(change.spans[0])} → ${spanOf(change.spans[1])}${late ? html`; <b>the first evaluation was at step ${change.spans[0][0]}</b>` : ""}</span></div>`
      : html`<div class="dim">no metric yet</div>`}
    <div class=${`said ${verdict.level}`}><span class="level">${SIGNS[verdict.level]}</span> ${verdict.sentence}</div>
    <div class="dim">${facts.join(" · ")}</div>
    ${best ? html`<div class="best"><span class="dim">${`${best.isBest ? "best checkpoint: step" : "model of step"} ${best.step}${best.score === null ? "" : `, ${best.metric} ${number(best.score)}`}`}</span>
      <${Copied} text=${best.line} />${best.note ? html`<div class="note">${best.note}</div>` : null}</div>` : null}
    <details><summary>folder and plugins</summary><div class="dim">${run.folder}</div><div class="dim">${run.plugins}</div></details>
    ${run.notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}</article>`;
}
function Answers() {
  return html`<div class="answers">${store.data.runs.map((run, i) => html`<${Answer} key=${run.folder} run=${run} i=${i} />`)}</div>`;
}
function Health() {
  const { verdicts, runs } = store.data, passed = verdicts.flat().filter((each) => each.level === "good").length;
  const shown = verdicts.flatMap((list, i) => list.filter((each) => view.passed || each.level !== "good").map((each) => [each, i]));
  return html`<${Section} id="health" title="Health">${passed ? html`<div class="controls"><${Check} id="passed" label=${passed === 1 ? "show the check that passed" : `show the ${passed} checks that passed`}
    value=${view.passed} change=${(value) => setView({ passed: value })} /></div>` : null}
    ${shown.length ? null : html`<p class="hint">${passed ? "No check found a problem." : "There are too few metrics for a verdict."}</p>`}
    ${shown.filter(([each]) => !each.follows).map(([each, i]) => html`<${OneVerdict} key=${`${i} ${each.name}`} each=${each} i=${i}
      following=${shown.filter(([other, j]) => i === j && other.follows === each.name)} />`)}<//>`;
}
/** A verdict; what follows from it is folded. */
function OneVerdict({ each, i, following = [] }) {
  const { runs } = store.data;
  return html`<div class=${`verdict ${each.level}`}><span class="level">${SIGNS[each.level]} ${each.name}</span>
      ${runs.length > 1 ? html`<span class="dim">${runs[i].name}: </span>` : null}<span>${each.evidence}${each.step === null ? "." : `; from step ${each.step} on.`}</span>
      ${each.advice ? html`<div>${each.advice}</div>` : null}${each.option ? html`<div class="remedy"><code>${each.option}</code> → ${each.value}</div>` : null}
      ${following.length ? html`<details class="following"><summary>${following.length === 1 ? "what follows" : `${following.length} that follow`} from it</summary>
        ${following.map(([other]) => html`<${OneVerdict} key=${other.name} each=${other} i=${i} />`)}</details>` : null}</div>`;
}

/** Two versions of the code. */
function Bench() {
  const { versions, method, measures, failures } = store.data.bench;
  return html`<${Section} id="bench" title="Better, same or worse">${versions.map((text, i) => html`<div><${Sample} variant=${i} /> ${text}</div>`)}
    <${Table} caption="measures" names=${2} head=${["case", "measure", ...store.data.variants.map((each) => each.label), "change", "seeds", "could be seen", ""]} numeric=${(i) => i > 1 && i < 7}
      rows=${measures.map((each) => [[each.case, each.name, number(each.before), number(each.after), each.change, String(each.count), each.visible, html`<b>${each.word}</b>`], `measure ${each.word}`])} />
    <p class="hint">${method}</p>${failures.map((text) => html`<pre class="note failure">${text}</pre>`)}<//>`;
}
