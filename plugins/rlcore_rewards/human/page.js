"use strict";
const $ = id => document.getElementById(id);
const token = location.hash.slice(1);
const random = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");
const tab = random();
let who = "", item = null, value = null, ranks = [], at = 0, shownAt = 0, busy = false, asPlain = null, toldUntil = 0;
const nothing = $("why").textContent, GIVE_UP_MS = 3600000;

// Answers that no reply has confirmed, kept by the browser: a run that is down receives them when it is back. With a
// storage that is forbidden, they last as long as the tab.
const store = {
  read(name, otherwise) { try { return JSON.parse(localStorage.getItem("rlcore-rewards " + name)) ?? otherwise; } catch { return otherwise; } },
  write(name, content) { try { localStorage.setItem("rlcore-rewards " + name, JSON.stringify(content)); } catch { /* full or forbidden */ } },
};
let outbox = store.read("answers", []);
function keep(answers) { outbox = answers; store.write("answers", outbox); }

// Text is only ever set as text. Control, format and lone surrogate characters are shown by their code points; tabs, and
// joiners, which letters and emoji need, stay.
const INVISIBLE = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu;
function fill(element, text) {
  element.replaceChildren();
  let end = 0;
  for (const found of text.matchAll(INVISIBLE)) {
    element.append(text.slice(end, found.index));
    const mark = document.createElement("span");
    mark.className = "ctl";
    const code = found[0].codePointAt(0);
    mark.textContent = code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
    element.append(mark);
    end = found.index + found[0].length;
  }
  element.append(text.slice(end));
}
function make(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  if (text !== undefined) fill(element, text);
  return element;
}
// The server renders Markdown without HTML, links and images, and removes all but a few tags.
function body(content) {
  if (asPlain || content.html === null) return make("p", "text", content.text);
  const element = make("div", "rendered");
  element.innerHTML = content.html;
  return element;
}
async function post(name, content, options = {}) {
  const reply = await fetch("api/" + name, {
    method: "POST", body: JSON.stringify({tab, who, ...content}), ...options,
    headers: {"Authorization": "Bearer " + token, "Content-Type": "application/json"},
  });
  const found = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(found.error), {status: reply.status});
  return found;
}

async function next() {
  if (!who || item || busy) return;
  busy = true;
  try {
    const found = await post("next", {});
    count(found);
    $("question").textContent = found.question;
    if (!outbox.length && Date.now() >= toldUntil) $("notice").textContent = "";
    const {waiting} = found, one = waiting === 1;
    $("why").textContent = !waiting ? nothing : `Waiting for another person: ${waiting} question${one ? " that you have judged needs" : "s that you have judged need"} the judgement of someone else, and the run waits for it. Send the link to someone who enters another name.`;
    const early = found.item && outbox.find(each => each.key === found.item.key);
    if (early) early.after = 0;  // it was answered while the run was down
    else if (found.item) show(found.item);
    $("idle").hidden = !!item;
  } catch (error) { complain(error); } finally { busy = false; }
}
// A message about an answer, which stays long enough to be read.
function tell(text) { $("notice").textContent = text; toldUntil = Date.now() + 15000; }
function count(found) { $("counts").textContent = `${found.open} open, ${found.judged} judged`; }
function complain(error) {
  const why = error.status ? error.message : "The run does not answer: it has ended, or is being restarted.";
  const kept = outbox.length ? ` ${outbox.length} answer${outbox.length > 1 ? "s are" : " is"} kept in this browser, and sent when it is back.` : "";
  $("notice").textContent = why + kept;
}
function show(found) {
  item = found; value = null; ranks = item.outputs.map(() => null); at = 0; shownAt = Date.now();
  draw(); scrollTo(0, 0);
}
function draw() {
  const isRank = item.mode === "rank", count = item.outputs.length, chosen = ranks;
  asPlain = store.read("plain", !item.is_conversation);
  $("form").setAttribute("aria-pressed", String(asPlain));
  $("turns").replaceChildren(...item.turns.map(turn => {
    const box = make("div", "turn");
    box.append(make("div", "role", turn.role), body(turn));
    return box;
  }));
  $("outputs").replaceChildren(...item.outputs.map((output, i) => {
    const card = make("section", "card");
    if (isRank) card.append(choices(`${letter(i)}: rank`, item.outputs.map((_, k) => k + 1), "best", "worst", k => { chosen[i] = k; at = i; }, ranks[i]));
    card.append(body(output));
    card.onclick = () => { at = i; ready(); };
    return card;
  }));
  $("answer").replaceChildren(...(isRank ? jumps() : [scale(...item.scale)]));
  $("keys").textContent = "Keys: " + (isRank ? rankKeys(count) : scoreKeys(marks(...item.scale)))
    + "Enter submits, X cannot judge, Backspace takes back the last answer, T plain text or Markdown";
  $("item").hidden = false; $("idle").hidden = true; ready();
  document.documentElement.style.scrollPaddingBottom = `${$("bar").offsetHeight + 8}px`;  // the bar covers no marked card
}
function letter(i) { return i < 26 ? String.fromCharCode(65 + i) : String(i + 1); }
// A button for each completion of a ranking, which shows its rank and scrolls to it: long ones are many screens apart.
function jumps() {
  return item.outputs.map((_, i) => {
    const button = make("button", "");
    button.type = "button";
    button.onclick = () => { at = i; ready(); $("outputs").children[i].scrollIntoView(); };
    return button;
  });
}
function choices(label, values, first, last, choose, already) {
  const row = make("div", "row", label);
  row.append(make("span", "role", first));
  for (const each of values) {
    const button = make("button", "", String(each));
    button.type = "button";
    const mark = other => {
      button.classList.toggle("chosen", other === button);
      button.setAttribute("aria-pressed", String(other === button));
    };
    button.mark = mark;
    mark(each === already ? button : null);
    button.onclick = event => {
      event.stopPropagation();
      for (const other of row.querySelectorAll("button")) other.mark(button);
      choose(each); ready();
    };
    row.append(button);
  }
  row.append(make("span", "role", last));
  return row;
}
// The scores that have a button; none if there would be so many that a slider is shown.
function marks(low, high, interval) {
  const count = interval ? Math.floor((high - low) / interval + 1e-9) + 1 : Infinity;
  return count > 11 ? [] : Array.from({length: count}, (_, k) => Number((low + k * interval).toPrecision(12)));
}
function rankKeys(count) {
  const digits = `${count > 1 ? "1–" + Math.min(count, 9) : "1"} rank the marked completion, ↑ ↓ mark another, `;
  return digits + (count > 9 ? "← → change its rank, also beyond 9, " : "← → change, ");
}
function scoreKeys(values) {
  if (!values.length) return "← or → goes to the slider, and then moves it, ";
  const digits = values.map(String).filter(each => each.length === 1), others = values.map(String).filter(each => each.length > 1);
  if (!digits.length) return "← → choose a score, ";
  return others.length ? `${digits.join(" ")} score, ← → change, also to ${others.join(" ")}, ` : "digits score, ← → change, ";
}
function scale(low, high, interval) {
  const values = marks(low, high, interval);
  if (values.length) {
    return choices("Score", values, "worst", "best", each => { value = each; }, value);
  }
  const row = make("div", "row", `worst ${low}`), slider = document.createElement("input"), shown = make("output", "", "no score yet");
  const state = () => { if (value !== null) shown.textContent = `score ${Number(value.toPrecision(4))}`; };
  Object.assign(slider, {type: "range", min: low, max: high, step: interval || "any", value: value ?? (low + high) / 2});
  slider.setAttribute("aria-label", "Score");
  slider.oninput = slider.onpointerup = () => { value = Number(slider.value); state(); ready(); };
  row.append(slider, `${high} best`, shown);
  state();
  return row;
}
function ready() {
  $("submit").disabled = item.mode === "score" ? value === null : ranks.includes(null);
  if (item.mode === "score") return;
  for (const place of ["outputs", "answer"]) [...$(place).children].forEach((each, i) => each.classList.toggle("at", i === at));
  [...$("answer").children].forEach((button, i) => { button.textContent = `${letter(i)}: ${ranks[i] ?? "–"}`; });
}
async function send(answer) {
  if (!item) return;
  if (busy) { setTimeout(send, 50, answer); return; }
  keep([...outbox, {id: random(), key: item.key, step: item.step, value: answer, who, seconds: (Date.now() - shownAt) / 1000, after: 0}]);
  item = null; $("item").hidden = true;
  await deliver();
}
async function deliver() {
  // One that gets no reply is sent again under the same id, and so is kept once. One whose question the restarted run
  // has not asked yet is tried again later, until the run has passed its step or an hour is over.
  if (busy) return;
  busy = true;
  try {
    for (const answer of outbox.filter(each => each.after <= Date.now())) {
      try {
        const {outcome} = await post("judge", answer), now = Date.now();
        answer.since ??= now;
        if (outcome === "unknown" && now - answer.since < GIVE_UP_MS) {
          answer.after = now + 5000; keep(outbox);
          $("notice").textContent = "The run is back, and has not asked the question of your last answer again; the answer is kept until it does.";
          continue;
        }
        keep(outbox.filter(each => each !== answer));
        if (outcome === "kept") $("notice").textContent = "";
        else tell(outcome === "closed" ? "This question was closed or answered in the meantime; your answer was not needed."
          : "The run has not asked the question of an earlier answer of yours again; that answer was given up.");
      } catch (error) {
        if (error.status && error.status < 500 && error.status !== 403) keep(outbox.filter(each => each !== answer));
        complain(error);
        return;
      }
    }
  } finally { busy = false; }
  await next();
}
async function takeBack() {
  if (!who) return;
  if (busy) { setTimeout(takeBack, 50); return; }  // an answer is on its way
  busy = true;
  try {
    const found = await post("take_back", {id: random()});
    if (found.item) { count(found); $("notice").textContent = ""; show(found.item); }
    else $("notice").textContent = "There is no answer to take back: the run uses the answers of a step as soon as it has all of them.";
  } catch (error) { complain(error); } finally { busy = false; }
}
$("submit").onclick = () => send(item.mode === "score" ? value : ranks);
$("skip").onclick = () => send(null);
$("back").onclick = $("back-idle").onclick = takeBack;
$("form").onclick = () => { store.write("plain", !asPlain); draw(); };
$("login").onsubmit = event => { event.preventDefault(); enter($("name").value.trim()); };
$("rename").onclick = () => {
  if (item) { post("leave", {}).catch(() => {}); item = null; $("item").hidden = true; }
  who = ""; $("who").textContent = ""; $("rename").hidden = $("idle").hidden = true; ask();
};
function ask() { $("login").hidden = false; $("name").focus(); }
function enter(name) {
  if (!name) return;
  who = name; store.write("name", name);
  $("who").textContent = who; $("login").hidden = true; $("rename").hidden = false;
  deliver();
}
function step(row, by) {
  const buttons = [...row.querySelectorAll("button")], now = buttons.findIndex(each => each.classList.contains("chosen"));
  buttons[Math.max(0, Math.min(buttons.length - 1, now < 0 ? 0 : now + by))]?.click();
}
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.type === "text") return;
  if (event.repeat && /^(enter|backspace|[xt\d])$/i.test(event.key)) {  // a key held down is one answer, not one for each question
    event.preventDefault();
    return;
  }
  if (event.key === "Backspace" && who) { event.preventDefault(); takeBack(); return; }
  if (!item) return;
  const isRank = item.mode === "rank", card = $("outputs").children[at];
  const row = isRank ? card.querySelector(".row") : $("answer");
  const key = event.key.toLowerCase(), slider = row.querySelector("input");
  if (key === "enter" && !["skip", "back", "form", "rename"].includes(event.target.id)) {
    event.preventDefault();
    if (!$("submit").disabled) $("submit").click();
  } else if (key === "x") $("skip").click();
  else if (key === "t") $("form").click();
  else if (key === "arrowleft" || key === "arrowright") {
    if (!slider) step(row, key === "arrowright" ? 1 : -1);
    else if (event.target !== slider) slider.focus();
  } else if (isRank && (key === "arrowup" || key === "arrowdown")) {
    event.preventDefault();
    at = Math.max(0, Math.min(ranks.length - 1, at + (key === "arrowdown" ? 1 : -1)));
    ready(); $("outputs").children[at].scrollIntoView({block: "nearest"});
  } else for (const button of row.querySelectorAll("button")) if (button.textContent === event.key) {
    button.click();
    if (isRank && at < ranks.length - 1) { at += 1; ready(); $("outputs").children[at].scrollIntoView({block: "nearest"}); }
  }
});
addEventListener("pagehide", () => { if (item) post("leave", {}, {keepalive: true}).catch(() => {}); });
addEventListener("pageshow", event => { if (event.persisted) { item = null; $("item").hidden = true; next(); } });
// The link of a restarted run may differ behind the '#' only, which alone loads no page.
addEventListener("hashchange", () => location.reload());
setInterval(() => { if (outbox.some(each => each.after <= Date.now())) deliver(); else next(); }, 1000);
setInterval(() => { if (item) post("renew", {}).catch(complain); }, 5000);
if (!token) $("notice").textContent = "This link is not complete: open the one that the run has printed.";
else if (store.read("name", "")) enter(store.read("name", ""));
else ask();
