// Makes pages live; every page works without it.

"use strict";

// What was sent last, by id: what is shown may differ from it by what the reader did, and by titles of times.
const sentById = new Map();

// What `data-live` names sends HTML; each element of it that is new takes the place of the one with the same id.
function replaceParts(html) {
  const sent = new DOMParser().parseFromString(html, "text/html");
  const focused = document.activeElement && document.activeElement.id;
  for (const part of sent.body.querySelectorAll("[id]")) {
    if (part.parentElement.closest("[id]")) continue; // it comes with the one around it
    const shown = document.getElementById(part.id);
    if (!shown || sentById.get(part.id) === part.outerHTML) continue;
    sentById.set(part.id, part.outerHTML);
    if (shown.outerHTML !== part.outerHTML) shown.replaceWith(document.adoptNode(part));
  }
  if (focused && document.activeElement === document.body) {
    const again = document.getElementById(focused);
    if (again) again.focus({ preventScroll: true });
  }
  localTimes(document);
}

function keepLive(container) {
  const state = container.querySelector(".live-state");
  const pause = document.createElement("button");
  pause.type = "button";
  pause.className = "button quiet live-pause";
  container.prepend(pause);
  let source = null;

  function tell(text) {
    state.textContent = text;
    state.hidden = !text;
  }

  function start() {
    pause.textContent = "Pause updates";
    container.dataset.state = "live";
    source = new EventSource(container.dataset.live);
    source.addEventListener("fragment", (event) => {
      tell("");
      replaceParts(event.data);
    });
    source.addEventListener("trouble", (event) => tell(event.data));
    source.addEventListener("end", (event) => {
      stop();
      tell(`Updates have ended: ${event.data}.`);
    });
    source.addEventListener("error", () => {
      const isOver = source && source.readyState === EventSource.CLOSED;
      tell(isOver ? "Updates have ended. Load the page again." : "The gateway does not answer; trying again.");
    });
  }

  function stop() {
    if (source) source.close();
    source = null;
    pause.textContent = "Resume updates";
    container.dataset.state = "paused";
  }

  pause.addEventListener("click", () => (source ? stop() : start()));
  // A browser keeps few connections open to one place: a page that nobody sees gives its own back.
  let wasLive = false;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      wasLive = source !== null;
      if (wasLive) stop();
    } else if (wasLive) {
      start();
    }
  });
  addEventListener("pagehide", () => source && source.close());
  start();
}

// `data-copy` is the id of what the button copies.
function offerCopy(button) {
  button.hidden = false;
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const shown = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(shown.textContent);
      button.textContent = "Copied";
    } catch {
      // Without TLS browsers lend no clipboard: it is at least selected.
      getSelection().selectAllChildren(shown);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (button.textContent = label), 4000);
  });
}

// `data-confirm` is asked before its form is sent.
function askFirst(form) {
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.confirm)) event.preventDefault();
  });
}

// A form is sent once, however often its button is pressed.
function sendOnce(form) {
  form.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}

// The reader's own time, on hovering.
function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = at.toLocaleString();
  }
}

document.querySelectorAll("[data-live]").forEach(keepLive);
document.querySelectorAll("[data-copy]").forEach(offerCopy);
document.querySelectorAll("form[data-confirm]").forEach(askFirst);
document.querySelectorAll('form[method="post"]').forEach(sendOnce);
addEventListener("pageshow", () =>
  document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent),
);
localTimes(document);
