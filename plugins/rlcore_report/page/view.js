// What the page shows, as its address has it: reloading it, going back and sending a link keep the view.
const { html, render, useState, useLayoutEffect, useRef, useMemo } = htmPreact;
const SHOWN_AT_ONCE = 10;
const DEFAULTS = {
  run: [], pick: [], list: "", column: [], order: "changed", up: false, metric: "", x: "step", log: false, smooth: 0, zoom: [], hide: [],
  open: [], full: "", passed: false, at: 0, source: "", step: "", text: "", cut: false, group: "", sort: "file",
  more: SHOWN_AT_ONCE, option: "", all: false, image: "",
};
const view = { ...DEFAULTS };

/** Read the view from the address; what is missing or has no such form has its default. */
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const given = asked.getAll(name);
    if (!given.length) view[name] = usual;
    else if (name === "zoom") view.zoom = given.length === 2 && given.every((each) => isFinite(each)) ? given.map(Number) : [];
    else if (Array.isArray(usual)) view[name] = given;
    else if (typeof usual === "boolean") view[name] = given[0] === "1";
    else if (typeof usual === "number") view[name] = isFinite(given[0]) ? Number(given[0]) : usual;
    else view[name] = given[0];
  }
}

function address(changes) {
  const asked = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = name in changes ? changes[name] : view[name];
    if (Array.isArray(usual)) for (const each of value) asked.append(name, each);
    else if (value !== usual) asked.append(name, typeof value === "boolean" ? "1" : value);
  }
  return `#${asked}`;
}

/** Change the view and its address, and draw it; another page of the view is a step that `back` undoes. */
function setView(changes) {
  const moves = "run" in changes || "full" in changes || "image" in changes;
  const target = address(changes);
  Object.assign(view, changes);
  try {
    history[moves ? "pushState" : "replaceState"](null, "", target);
  } catch (error) {
    // Some browsers limit how often an address changes; the view is right all the same.
  }
  redraw();
}

/** Return a function that tells whether a text matches what a person types: a regular expression, else a plain text. */
function matcher(typed) {
  if (!typed) return Object.assign(() => true, { valid: true });
  try {
    const pattern = new RegExp(typed, "i");
    return Object.assign((text) => pattern.test(text), { valid: true });
  } catch (error) {
    const plain = typed.toLowerCase();
    return Object.assign((text) => text.toLowerCase().includes(plain), { valid: false });
  }
}
