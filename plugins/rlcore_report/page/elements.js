// Parts that several sections use. Every text of a run becomes a text node: nothing here parses HTML.
const COLOURS = 8, DASHES = ["", "9 4", "3 3", "12 3 3 3", "6 2 2 2 2 2", "15 3", "2 6", "12 3 6 3"]; // 64 kinds of lines
const dashOf = (variant) => DASHES[Math.floor(variant / COLOURS) % DASHES.length];
const colourOf = (variant) => `var(--c${variant % COLOURS})`;
function number(value) {
  if (value === null || value === undefined) return "";
  const rounded = Number(value.toPrecision(4));
  return rounded !== 0 && Math.abs(rounded) < 1e-4 ? rounded.toExponential() : rounded.toString();
}
const SIGNS = { good: "✓", warning: "!", bad: "✗", none: "–", pending: "…" };

function signed(value) {
  return value === null || value === undefined ? "" : `${value > 0 ? "+" : ""}${number(value)}`;
}
function duration(seconds) {
  if (seconds < 100) return `${number(Number(seconds.toPrecision(2)))} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${number(Number((seconds / 3600).toPrecision(2)))} h` : `${Math.round(seconds / 86400)} days`;
}
function large(count) {
  const unit = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => count >= size);
  return unit ? `${Number((count / unit[0]).toPrecision(3))}${unit[1]}` : number(count);
}

/** A line as the charts draw it, for legends and lists. */
function Sample({ variant, points }) {
  return html`<svg class="sample" width="30" height="10" aria-hidden="true"><line x1="0" y1="5" x2="30" y2="5"
    style=${`stroke: ${colourOf(variant)}`} stroke-width=${points ? 1.5 : 2.5} stroke-dasharray=${dashOf(variant)} />
    ${points ? html`<circle cx="15" cy="5" r="3.5" style=${`fill: ${colourOf(variant)}`} />` : null}</svg>`;
}
function Typed({ id, label, value, placeholder, change, pattern }) {
  const valid = !pattern || matcher(value).valid;
  return html`<label>${label}<input id=${id} type="search" value=${value} placeholder=${placeholder} spellcheck=${false}
    aria-invalid=${valid ? "false" : "true"} title=${valid ? "" : "no regular expression: taken as plain text"}
    oninput=${(event) => change(event.currentTarget.value)} /></label>`;
}
function Check({ id, label, value, change }) {
  return html`<label><input id=${id} type="checkbox" checked=${value} onchange=${(event) => change(event.currentTarget.checked)} />${label}</label>`;
}
function Choice({ id, label, value, choices, change }) {
  return html`<label>${label}<select id=${id} value=${value} onchange=${(event) => change(event.currentTarget.value)}>
    ${choices.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}</select></label>`;
}
/** A table, of which the first cells of a row name it. On a phone, a row is a paragraph that repeats the column heads. */
function Table({ head, rows, numeric = () => false, caption, names = 1 }) {
  const kind = (i) => [numeric(i) ? "number" : "", i < names ? "name" : ""].filter(Boolean).join(" ");
  return html`<div class="wide" tabindex="0" role="region" aria-label=${caption}><table><thead><tr>
    ${head.map((cell, i) => html`<th scope="col" class=${kind(i)}>${cell}</th>`)}</tr></thead><tbody>
    ${rows.map(([cells, name]) => html`<tr class=${name || ""}>${cells.map((cell, i) => html`<td class=${kind(i)} data-head=${head[i]}>${cell}</td>`)}</tr>`)}
    </tbody></table></div>`;
}
/** The value of an option; a short one is never broken. */
function Code({ text }) {
  return html`<code class=${text.length < 24 ? "short" : ""}>${text}</code>`;
}
function Section({ id, title, children }) {
  return html`<section id=${id} aria-label=${title}><h2>${title}</h2>${children}</section>`;
}
/** Text of a model, whose lines each have the direction of their first letter. */
function Words({ text, name = "" }) {
  return html`<div class=${`text ${name}`} dir="auto" tabindex=${text.length > 700 ? 0 : undefined}>${text}</div>`;
}
function Turns({ turns }) {
  return turns.map(([role, text], i) => html`<div key=${i} class=${`message ${role.split(" ")[0]}`}><div class="role">${role}</div><${Words} text=${text} /></div>`);
}
function Copied({ text }) {
  const [done, setDone] = useState(false);
  const copy = () => navigator.clipboard.writeText(text).then(() => setDone(true), () => setDone(false));
  return html`<span class="copied"><code>${text}</code>${navigator.clipboard ? html`<button class="quiet" onclick=${copy}>${done ? "copied" : "copy"}</button>` : null}</span>`;
}
/** Offer a text as a file. */
function download(name, text, kind = "text/csv") {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.@=-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
/** Return a cell of a CSV file; a spreadsheet would compute a text that begins as a formula. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
/** Focus an element of a dialog that opens, and, when it closes, what had the focus before. */
function useDialogFocus(box, opened, wanted) {
  const before = useRef(null);
  useLayoutEffect(() => {
    if (!box.current) {
      if (before.current) before.current.focus({ preventScroll: true });
      before.current = null;
    } else if (!box.current.contains(document.activeElement)) {
      before.current = before.current || document.activeElement;
      box.current.querySelector(wanted).focus();
    }
  }, [opened]);
}
