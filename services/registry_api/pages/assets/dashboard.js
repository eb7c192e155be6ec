// What pages do beyond htmx: the progress of an upload, problems, menus, copying a key, and sending a form once.
// All of it is an addition: without this script, every form and link still works.
(function () {
  "use strict";

  const SESSION_CHANGED = "You have signed in, signed out or chosen another namespace since this page was loaded, or " +
    "your session has ended. Copy what you typed, and load this page again.";

  function tellProblem(text) {
    const problem = document.getElementById("problem");
    const alert = document.createElement("div");
    alert.className = "alert";
    alert.textContent = text;
    problem.replaceChildren(alert);
    problem.scrollIntoView({ block: "nearest" });
  }

  function prepareCopy(button) {
    if (!navigator.clipboard) return;
    button.hidden = false;
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(document.getElementById(button.dataset.copy).value).then(function () {
        button.textContent = "Copied";
      });
    });
  }

  function prepare(root) {
    root.querySelectorAll("[data-copy]").forEach(prepareCopy);
  }

  document.addEventListener("registry:problem", function (event) { tellProblem(event.detail); });
  document.addEventListener("DOMContentLoaded", function () { prepare(document); });
  document.addEventListener("htmx:afterSettle", function () { prepare(document); });

  // A failure that these pages did not render, for example a proxy's, would take the place of what is shown.
  function isStray(answer) {
    if (answer.xhr.status < 400 || answer.xhr.getResponseHeader("HX-Retarget")) return false;
    const isPage = (answer.xhr.getResponseHeader("Content-Type") || "").startsWith("text/html");
    return !isPage || answer.requestConfig.elt.hasAttribute("hx-select");
  }

  // A part that changes stays as it is while a person answers a question in it or has selected text of it.
  function isHeld(live) {
    const selection = getSelection();
    return live.querySelector(".confirm[open]") || (!selection.isCollapsed && selection.containsNode(live, true));
  }

  // If the session has changed in another tab, such a part has the whole page loaded again or leads to the page
  // to sign in at. What a person has typed meanwhile would be lost.
  let typed = false;
  document.addEventListener("input", function () { typed = true; });
  function leavesThePage(xhr) {
    return xhr.getResponseHeader("HX-Refresh") || xhr.getResponseHeader("HX-Redirect");
  }
  document.addEventListener("htmx:beforeOnLoad", function (event) {
    const elt = event.detail.elt;
    if (elt.id !== "live") return;
    if (typed && leavesThePage(event.detail.xhr)) {
      event.preventDefault();
      if (!document.getElementById("problem").firstChild) tellProblem(SESSION_CHANGED);
    } else if (isHeld(elt)) event.preventDefault();
  });

  // Nobody looks at a hidden tab, so it does not ask. What is open in a part that changes stays open.
  let open = [];
  document.addEventListener("htmx:beforeRequest", function (event) {
    const elt = event.detail.elt;
    if (elt.id === "live" && (document.hidden || isHeld(elt))) event.preventDefault();
    // What a page fetches by itself, such as pictures that are not drawn yet, leaves a problem to be read.
    else if (elt.matches("form, a")) document.getElementById("problem").replaceChildren();
  });
  document.addEventListener("htmx:beforeSwap", function (event) {
    if (isStray(event.detail)) {
      event.detail.shouldSwap = false;
      tellProblem("The answer was an error (status " + event.detail.xhr.status + "). What this page shows may be out of date.");
    }
    open = Array.from(document.querySelectorAll("#live details[open][id]"), function (one) { return one.id; });
  });
  document.addEventListener("htmx:afterSwap", function (event) {
    if (event.detail.target === document.body) typed = false;
    open.forEach(function (id) {
      const one = document.getElementById(id);
      if (one) one.open = true;
    });
  });

  document.addEventListener("htmx:xhr:progress", function (event) {
    const progress = document.getElementById("progress");
    if (!progress || !event.detail.lengthComputable) return;
    progress.hidden = false;
    progress.value = (100 * event.detail.loaded) / event.detail.total;
  });
  document.addEventListener("htmx:responseError", function () {
    const progress = document.getElementById("progress");
    if (progress) progress.hidden = true;
  });
  document.addEventListener("htmx:sendError", function () {
    tellProblem("The registry does not answer. What this page shows may be out of date.");
  });

  // A form that is being sent is not sent again: what it does would be done twice, and the browser would show
  // the second answer only, so that a new key in the first one would be lost. It can be sent again once htmx has
  // an answer, when a person comes back to the page, and if no answer has replaced the page for long.
  const SENDING_MS = 60000;
  function mayBeSentAgain(form) { form.removeAttribute("aria-busy"); }
  document.addEventListener("submit", function (event) {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.hasAttribute("aria-busy")) {
      event.preventDefault();
      event.stopImmediatePropagation();
      return;
    }
    form.setAttribute("aria-busy", "true");
    setTimeout(mayBeSentAgain, SENDING_MS, form);
  }, true);
  document.addEventListener("htmx:afterRequest", function (event) { mayBeSentAgain(event.detail.elt); });
  window.addEventListener("pageshow", function () {
    document.querySelectorAll("form[aria-busy]").forEach(mayBeSentAgain);
  });

  // A new key is shown once, so it is not on the page that some browsers keep for the way back.
  window.addEventListener("pagehide", function () {
    document.querySelectorAll(".new-key").forEach(function (one) { one.remove(); });
  });

  // A details element that serves as a menu closes like one.
  document.addEventListener("keydown", function (event) {
    if (event.key !== "Escape") return;
    document.querySelectorAll("details.menu[open], details.confirm[open]").forEach(function (one) {
      one.open = false;
      one.querySelector("summary").focus();
    });
  });
  document.addEventListener("click", function (event) {
    document.querySelectorAll("details.menu[open], details.confirm[open]").forEach(function (one) {
      if (!one.contains(event.target)) one.open = false;
    });
  });
})();
