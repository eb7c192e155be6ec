// What pages do beyond htmx: the progress of an upload, problems, menus, copying a key, and sending a form once.
// All of it is an addition: without this script, every form and link still works.
(function () {
  "use strict";

  const SESSION_CHANGED = "You have signed in, signed out or chosen another namespace since this page was loaded, or " +
    "your session has ended. Copy what you typed, and load this page again.";

  const OUT_OF_DATE = " What this page shows may be out of date.";

  function tell(area, text) {
    const alert = document.createElement("div");
    alert.className = "alert";
    alert.textContent = text;
    area.replaceChildren(alert);
  }

  // What a person did has failed. They may have done it far below the area for problems.
  function tellProblem(text) {
    const problem = document.getElementById("problem");
    tell(problem, text);
    problem.scrollIntoView({ block: "nearest" });
  }

  // What the page asks for by itself has failed. Nothing is scrolled, and a failure that lasts is told once, because
  // a screen reader would read it out every second. That of the pictures must not take turns with another one. It is
  // taken back when what has failed is well again.
  let failed = "";
  function tellStale(elt, text) {
    const stale = document.getElementById("stale");
    if (elt.id === "live" ? stale.textContent === text : stale.firstChild) return;
    failed = elt.id;
    tell(stale, text);
  }
  function clearStale(elt) {
    if (elt.id === failed) document.getElementById("stale").replaceChildren();
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

  // A page asks by itself for the part that changes, and for pictures that are not drawn yet.
  function asksByItself(elt) { return !elt.matches("form, a"); }

  function strayFailure(xhr) {
    const what = xhr.status < 400 ? "was not a page of the registry" : "was an error";
    return "The answer " + what + " (status " + xhr.status + ")." + OUT_OF_DATE;
  }

  function elementIn(xhr, id) {
    return new DOMParser().parseFromString(xhr.responseText, "text/html").getElementById(id);
  }

  // The id of the part of a page that the answer must have. A form that replaces the whole page asks for none.
  function partAskedFor(elt) {
    const selected = elt.getAttribute("hx-select");
    if (selected) return selected.slice(1);
    return asksByItself(elt) ? elt.id : "";
  }

  // What these pages did not render, for example a proxy's failure or the page of a single sign-on, would take the
  // place of what is shown. A part that is replaced by it would not ask again.
  function isStray(answer) {
    const xhr = answer.xhr;
    if (xhr.getResponseHeader("HX-Retarget")) return false;
    if (!(xhr.getResponseHeader("Content-Type") || "").startsWith("text/html")) return true;
    const part = partAskedFor(answer.requestConfig.elt);
    return part !== "" && (xhr.status >= 400 || !elementIn(xhr, part));
  }

  function failureIn(xhr) {
    return xhr.getResponseHeader("HX-Retarget") ? elementIn(xhr, "message").textContent : strayFailure(xhr);
  }

  // The part that changes stays as it is while a person answers a question in it or has selected text of it.
  function isHeld(elt) {
    if (elt.id !== "live") return false;
    const selection = getSelection();
    return elt.querySelector(".confirm[open]") || (!selection.isCollapsed && selection.containsNode(elt, true));
  }

  // If the session has changed in another tab, or its key was revoked, an answer has the whole page loaded again or
  // leads to the page to sign in at. What a person has typed meanwhile would be lost, so the page stays. It asks for
  // nothing more: requests with a key that has ended would soon have the registry refuse everybody at this address.
  let typed = false;
  let sessionChanged = false;
  document.addEventListener("input", function () { typed = true; });
  function leavesThePage(xhr) {
    return xhr.getResponseHeader("HX-Refresh") || xhr.getResponseHeader("HX-Redirect");
  }
  document.addEventListener("htmx:beforeOnLoad", function (event) {
    const elt = event.detail.elt;
    const xhr = event.detail.xhr;
    if (!asksByItself(elt)) return;
    if (leavesThePage(xhr)) {
      if (typed) {
        sessionChanged = true;
        tell(document.getElementById("stale"), SESSION_CHANGED);
      }
      if (typed || isHeld(elt)) event.preventDefault();
    } else if (xhr.status >= 400 || isStray(event.detail)) {
      tellStale(elt, failureIn(xhr));
      event.preventDefault();
    } else {
      if (!sessionChanged) clearStale(elt);
      if (isHeld(elt)) event.preventDefault();
    }
  });

  // Nobody looks at a hidden tab, so its part that changes does not ask. What is open in that part stays open.
  let open = [];
  document.addEventListener("htmx:beforeRequest", function (event) {
    const elt = event.detail.elt;
    if (!asksByItself(elt)) document.getElementById("problem").replaceChildren();
    else if (sessionChanged || isHeld(elt) || (elt.id === "live" && document.hidden)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", function (event) {
    // What a page asks for by itself was looked at before.
    if (!asksByItself(event.detail.requestConfig.elt) && isStray(event.detail)) {
      event.detail.shouldSwap = false;
      tellProblem(strayFailure(event.detail.xhr));
    }
    open = Array.from(document.querySelectorAll("#live details[open][id]"), function (one) { return one.id; });
  });
  document.addEventListener("htmx:afterSwap", function (event) {
    if (event.detail.target === document.body) typed = sessionChanged = false;
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
  document.addEventListener("htmx:afterRequest", function () {
    const progress = document.getElementById("progress");
    if (progress) progress.hidden = true;
  });
  document.addEventListener("htmx:sendError", function (event) {
    const failure = "The registry does not answer." + OUT_OF_DATE;
    if (asksByItself(event.detail.elt)) tellStale(event.detail.elt, failure);
    else tellProblem(failure);
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
