// What a page is better with: the feed fills while the page is visible, and the map names the box that is pointed at.
"use strict";

const EVERY_MS = 2000;
const feed = document.querySelector("[data-feed]");
let timer = 0;

async function refresh() {
  try {
    // against the origin: no request may have the login that the address of a page may hold
    const answer = await fetch(new URL(feed.dataset.feed, location.origin));
    if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-feed]"));
  } catch {
    // the service is away; the next time may find it again
  }
  plan();
}

function show(fresh) {
  if (fresh.dataset.view !== feed.dataset.view) location.reload();
  // a person who is at a link of it would lose the place
  else if (!feed.contains(document.activeElement)) feed.replaceChildren(...fresh.childNodes);
}

function plan() {
  clearTimeout(timer);
  if (document.visibilityState === "visible") timer = setTimeout(refresh, EVERY_MS);
}

if (feed) {
  document.addEventListener("visibilitychange", plan);
  plan();
}

for (const map of document.querySelectorAll("figure.map")) {
  const words = map.querySelector(".pointed");
  let wasNamed = false;
  const nameOf = event => event.target.closest("a.tile")?.getAttribute("aria-label");
  const point = event => {
    if (event.pointerType !== "touch") words.textContent = nameOf(event) ?? words.textContent;
  };
  map.addEventListener("pointerover", point);
  map.addEventListener("focusin", point);
  // a finger cannot point: the first tap names a box, the second opens it
  map.addEventListener("pointerdown", event => {
    wasNamed = words.textContent === nameOf(event);
  });
  map.addEventListener("click", event => {
    const name = nameOf(event);
    if (event.pointerType !== "touch" || !name || wasNamed) return;
    words.textContent = name;
    event.preventDefault();
  });
}
