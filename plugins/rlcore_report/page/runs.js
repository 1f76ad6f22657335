// The list of runs of a dashboard.
const COLUMNS = [["name", "run"], ["trainer", "trainer"], ["model", "model"], ["last", "last"], ["best", "best"], ["verdict", "verdict"], ["progress", "progress"], ["changed", "age"]];
const AT_ONCE = 100, collator = new Intl.Collator(undefined, { numeric: true });
const LEVELS = { bad: 0, warning: 1, good: 2, none: 3, pending: 4 };
const progressOf = (run) => (run.total ? Math.min(1, run.step / run.total) : 0);

function age(seconds) {
  if (seconds < 60) return "now";
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([each]) => seconds >= each);
  return `${Math.floor(seconds / size)} ${unit}`;
}
const optionOf = (run, path) => run.options[path] ?? store.common[path];
const STATES = ["running", "silent", "finished", "stopped", "interrupted", "failed", "killed"];
const asNumber = (text) => (text !== undefined && text.trim() !== "" && isFinite(text) ? Number(text) : null);
/** Return the paths of options that a person calls by a name, which may be the end of a path. */
function pathsOf(name) {
  const known = new Set([...Object.keys(store.common), ...store.list.flatMap((run) => Object.keys(run.options))]);
  return known.has(name) ? [name] : [...known].filter((path) => path.endsWith(`.${name}`));
}
const COMPARED = { "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };
/** Return a function that tells whether a run matches every word of a filter: a state, `option=value`, or a pattern. */
function filterOf(typed) {
  const tests = typed.split(/\s+/).filter(Boolean).map((word) => {
    const asked = /^([\w.-]+)(!=|<=|>=|=|<|>)(.*)$/.exec(word);
    if (STATES.includes(word)) return (run) => run.state === word;
    if (!asked) {
      const matches = matcher(word);
      return (run) => [run.key, run.name, run.trainer, run.model, run.verdict.name].some(matches);
    }
    const [, name, sign, wanted] = asked, paths = pathsOf(name), b = asNumber(wanted);
    return (run) => paths.some((path) => {
      const value = optionOf(run, path), a = asNumber(value);
      if (value === undefined) return false;
      return a !== null && b !== null ? COMPARED[sign](a, b) : COMPARED[sign](value, wanted);
    });
  });
  return (run) => tests.every((test) => test(run));
}
/** Return the options by which a filter asks that no run has. */
function unknownIn(typed) {
  return typed.split(/\s+/).map((word) => /^([\w.-]+)(?:!=|<=|>=|=|<|>)/.exec(word)).filter((asked) => asked && !pathsOf(asked[1]).length).map((asked) => asked[1]);
}
/** Return what can be shown in a column: the options that differ between runs. */
function optionsThatDiffer() {
  return [...new Set(store.list.flatMap((run) => Object.keys(run.options)))].filter((path) => path !== "run.name").sort(collator.compare);
}
function valueOf(run, column) {
  if (view.column.includes(column)) {
    const text = optionOf(run, column);
    return text === undefined ? null : asNumber(text) ?? text;
  }
  if (column === "verdict") return LEVELS[run.verdict.level];
  return column === "progress" ? progressOf(run) : run[column];
}
function sorted(runs) {
  const up = view.up ? 1 : -1, first = (run) => valueOf(run, view.order);
  return [...runs].sort((a, b) => {
    const [x, y] = [first(a), first(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return (typeof x === "string" || typeof y === "string" ? collator.compare(x, y) : x - y) * up || (a.key < b.key ? -1 : 1);
  });
}
function Row({ run }) {
  const picked = view.pick.includes(run.key);
  const flip = () => setView({ pick: picked ? view.pick.filter((key) => key !== run.key) : [...view.pick, run.key] });
  const open = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    setView({ ...PLAIN, run: [run.key] });
    scrollTo(0, 0);
  };
  const folder = run.key.includes("/") ? run.key.slice(0, run.key.lastIndexOf("/") + 1) : "";
  return html`<tr class=${picked ? "picked" : ""}><td class="pick"><input type="checkbox" aria-label=${`select ${run.key}`} checked=${picked} onchange=${flip} /></td>
    <td class="run"><a href=${address({ ...PLAIN, run: [run.key] })} onclick=${open}><span class="dim">${folder}</span>${run.name}</a>${run.state === "finished" ? null : html` <span class=${`going ${run.state}`}>${run.state}</span>`}</td>
    <td>${run.trainer}</td><td class="model">${run.model}</td>
    ${view.column.map((path) => html`<td key=${path} class="option" data-head=${path.split(".").pop()}>${optionOf(run, path) ?? ""}</td>`)}
    <td class="number last">${["", "reward/mean", "eval/reward/mean"].includes(run.metric) ? null : html`<span class="dim">${run.metric} </span>`}${number(run.last)}</td>
    <td class="number best">${number(run.best)}</td>
    <td class=${`said ${run.verdict.level}`} title=${run.verdict.sentence}><span class="level">${SIGNS[run.verdict.level]}</span> ${run.verdict.name}</td>
    <td class="progress">${run.total ? html`<progress value=${progressOf(run)} max="1" aria-label="progress"></progress> ${run.step}/${run.total}` : `step ${run.step}`}</td>
    <td class="age" title=${new Date(run.changed * 1000).toLocaleString()}>${age(store.now - run.changed)}</td></tr>`;
}
/** The rows in sight and some below them; more are drawn as the last one comes into sight, and all on paper. */
function Rows({ rows }) {
  const [room, setRoom] = useState(AT_ONCE), end = useRef(null);
  useLayoutEffect(() => {
    if (room >= rows.length) return undefined;
    const watch = new IntersectionObserver((seen) => { if (seen.some((each) => each.isIntersecting)) setRoom(room + AT_ONCE); }, { rootMargin: "600px" });
    watch.observe(end.current);
    return () => watch.disconnect();
  }, [room, rows.length]);
  const drawn = printing ? rows : rows.slice(0, room), rest = rows.length - drawn.length;
  return html`<tbody>${drawn.map((run) => html`<${Row} key=${run.key} run=${run} />`)}
    ${rest ? html`<tr key="/rest" ref=${end}><td colspan=${COLUMNS.length + view.column.length + 1} class="dim">${rest} more below</td></tr>` : null}</tbody>`;
}
function Runs() {
  const { list } = store, unknown = unknownIn(view.list), differing = optionsThatDiffer();
  const rows = useMemo(() => sorted(list.filter(filterOf(view.list))), [list, view.list, view.order, view.up, view.column.join()]);
  const columns = [...COLUMNS.slice(0, 3), ...view.column.map((path) => [path, path.split(".").pop()]), ...COLUMNS.slice(3)];
  const there = view.pick.filter((key) => list.some((run) => run.key === key));
  const order = (column) => setView({ order: column, up: view.order === column ? !view.up : ["name", "trainer", "model", "verdict"].includes(column) });
  return html`<h1>Runs</h1><div class="controls"><${Typed} id="list" label="runs" value=${view.list} placeholder="ppo lr=0.05 running" pattern change=${(value) => setView({ list: value })} />
      <span class="dim" id="shown" aria-live="polite">${rows.length === list.length ? `${list.length} runs` : `${rows.length} of ${list.length} runs`}</span>
      ${unknown.length ? html`<span id="unknown" role="status">no run has an option ${unknown.join(", ")}</span>` : null}
      ${differing.length ? html`<${Choice} id="column" label="column" value="" choices=${[["", "show an option"], ...differing.filter((path) => !view.column.includes(path)).map((path) => [path, path])]}
        change=${(path) => path && setView({ column: [...view.column, path] })} />` : null}
      ${view.column.length ? html`<button class="quiet" id="fewer" onclick=${() => setView({ column: [], order: view.column.includes(view.order) ? "changed" : view.order })}>hide options</button>` : null}
      <button id="compare" disabled=${!there.length || there.length > shell.most} onclick=${() => { setView({ ...PLAIN, run: there }); scrollTo(0, 0); }}>
        ${there.length > 1 ? `compare ${there.length} runs` : "open the selected run"}</button>
      ${there.length > shell.most ? html`<span id="most" role="status">a page shows at most ${shell.most} runs</span>` : null}
      ${there.length ? html`<button class="quiet" id="none" onclick=${() => setView({ pick: [] })}>select none</button>` : null}
      ${rows.length <= 40 && rows.length > 1 ? html`<button class="quiet" id="every" onclick=${() => setView({ pick: rows.map((run) => run.key) })}>select all shown</button>` : null}</div>
    ${list.length ? null : html`<p class="hint">There is no run here yet. The list follows the folder.</p>`}
    <table class="list"><caption class="hidden">Runs, of which the last and the best value of the main metric</caption><thead><tr><th><span class="hidden">selected</span></th>
      ${columns.map(([key, title]) => html`<th scope="col" class=${["last", "best"].includes(key) ? "number" : ""} aria-sort=${view.order === key ? (view.up ? "ascending" : "descending") : "none"}>
        <button class="bare" onclick=${() => order(key)}>${title}${view.order === key ? (view.up ? " ↑" : " ↓") : ""}</button></th>`)}</tr></thead>
      <${Rows} rows=${rows} /></table>`;
}
