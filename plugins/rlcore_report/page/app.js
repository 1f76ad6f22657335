// The page as a whole, and how a dashboard asks for what is new. Only what has changed is drawn again.
const EVERY_MS = 2000;
const shell = JSON.parse(document.getElementById("data").textContent);
const store = { data: shell.live ? null : shell, list: null, common: {}, now: 0, listed: "", keys: "", problem: "" };
const PLAIN = { at: 0, source: "", step: "", group: "", image: "", full: "", zoom: [], hide: [], more: SHOWN_AT_ONCE };
const scheme = matchMedia("(prefers-color-scheme: dark)"), paper = matchMedia("print");
let printing = false;

const chosen = () => (view.run.length ? view.run : shell.opened || []);
function Page() {
  const { data } = store, several = data.runs.length > 1, unreadable = data.unreadable || [];
  const parts = [several ? ["comparison", "Comparison", Comparison] : null, data.bench ? ["bench", "Better, same or worse", Bench] : null,
    data.runs.length || data.bench ? ["curves", "Curves", Curves] : null, data.runs.length ? ["health", "Health", Health] : null,
    data.runs.some((run) => run.images.length) ? ["images", "Images", Images] : null, data.runs.length ? ["texts", "Completions", Texts] : null,
    data.runs.some((run) => run.texts.length) ? ["notes", "From plugins", Notes] : null, data.runs.length ? ["options", "Configuration", Options] : null].filter(Boolean);
  if (several) parts.splice(0, 2, parts[1], parts[0]);
  const go = (event, name) => {
    event.preventDefault();
    document.getElementById(name).scrollIntoView();
  };
  const title = data.title || (several ? `${data.runs.length} runs` : [...data.runs, ...unreadable][0].name);
  return html`<nav>${shell.live ? html`<a class="back" href=${address({ ...PLAIN, run: [] })} onclick=${(event) => { event.preventDefault(); shell.opened = []; setView({ ...PLAIN, run: [] }); }}>all runs</a>` : null}
      ${parts.map(([name, text]) => html`<a key=${name} href=${`#${name}`} onclick=${(event) => go(event, name)}>${text}</a>`)}</nav>
    <h1>${title}</h1><div class="dim" id="written">${store.problem || `rlcore ${data.version}, ${data.written}`}</div>
    ${unreadable.map((each) => html`<p class="note" key=${each.name}><b>${each.name}</b> cannot be shown: ${each.problem}</p>`)}
    ${data.runs.length ? html`<${Answers} />` : null}${parts.map(([name, , Part]) => html`<${Part} key=${name} />`)}<${FullScreen} /><${LargeImage} />`;
}
function App() {
  if (!shell.live) return html`<${Page} />`;
  if (chosen().length) {
    if (store.data && store.keys === chosen().join("\n")) return html`<${Page} />`;
    return html`<p class="hint">${store.problem || "reading the run …"} <a href=${address({ ...PLAIN, run: [] })}>all runs</a></p>`;
  }
  return store.list ? html`<${Runs} />${store.problem ? html`<p class="note">${store.problem}</p>` : null}` : html`<p class="hint">${store.problem || "reading the runs …"}</p>`;
}
let place = null; // nothing is shown yet, so that the first drawing asks at once
function redraw() {
  const name = shell.live && !chosen().length ? "runs" : (store.data && store.data.runs.map((run) => run.name).slice(0, 3).join(", ")) || "";
  if (shell.live && name) document.title = `rlcore: ${name}`;
  document.body.classList.toggle("covered", Boolean(view.full || view.image));
  render(html`<${App} />`, document.getElementById("page"));
  if (shell.live && place !== chosen().join("\n")) {
    place = chosen().join("\n");
    ask();
  }
}

let asking = null;
async function get(path, fields) {
  const answered = await fetch(`${path}?${new URLSearchParams(fields)}`, { signal: asking.signal });
  if (!answered.ok) throw new Error(answered.status === 404 ? "there is no such run" : `the server answers ${answered.status}${answered.statusText ? `: ${answered.statusText}` : ""}`);
  return answered.json();
}
/** Ask for what is new in what is shown. */
async function ask() {
  if (asking) asking.abort();
  asking = new AbortController();
  const keys = chosen(), current = asking;
  try {
    if (keys.length) {
      const known = store.keys === keys.join("\n");
      const newer = await get("data.json", [...keys.map((key) => ["run", key]), ["stamp", known ? store.data.stamp : ""]]);
      if (newer.same && !store.problem) return;
      if (!newer.same) Object.assign(store, { data: newer, keys: keys.join("\n") });
    } else {
      const newer = await get("runs.json", [["stamp", store.listed]]);
      const older = Math.floor(store.now / 60) === Math.floor(newer.now / 60);
      store.now = newer.now;
      if (newer.same && older && !store.problem) return;
      if (!newer.same) Object.assign(store, { list: newer.runs, common: newer.common, listed: newer.stamp });
    }
    store.problem = "";
    redraw();
  } catch (error) {
    if (current.signal.aborted) return;
    store.problem = error instanceof TypeError ? "the server has ended; the page shows what it last sent" : error.message;
    redraw();
  } finally {
    if (asking === current) asking = null;
  }
}

function toPrint(event) {
  printing = event.type === "beforeprint" || (event.type === "change" && event.matches);
  redraw();
}
addEventListener("beforeprint", toPrint);
addEventListener("afterprint", toPrint);
paper.addEventListener("change", toPrint);
scheme.addEventListener("change", redraw);
addEventListener("popstate", () => { readAddress(); redraw(); });
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && (view.full || view.image)) setView({ full: "", image: "" });
});
readAddress();
redraw();
if (shell.live) setInterval(() => { if (!document.hidden && !asking) ask(); }, EVERY_MS);
