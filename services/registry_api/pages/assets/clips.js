// Clips on pages: dropping one, recording one with the microphone, and hearing two in turn. Without this
// script a clip is chosen as a file, and each player plays by itself.
(function () {
  "use strict";

  function tellProblem(text) {
    document.dispatchEvent(new CustomEvent("registry:problem", { detail: text }));
  }

  function sizeOf(bytes) {
    return bytes < 1048576 ? Math.ceil(bytes / 1024) + " KiB" : (bytes / 1048576).toFixed(1) + " MiB";
  }

  // The file input of the form, with its limits, its preview and the sentence about what was chosen.
  function clipInput(drop) {
    const input = drop.querySelector("input[type=file]");
    const chosen = drop.querySelector("#chosen");
    const preview = drop.querySelector("audio");
    const limits = drop.dataset;

    function say(file, refusal) {
      input.setCustomValidity(refusal);
      chosen.textContent = refusal || (file ? file.name + ", " + sizeOf(file.size) : "");
      chosen.classList.toggle("bad", Boolean(refusal));
    }

    function checkLength() {
      const file = input.files[0];
      const seconds = preview.duration;
      if (!file || !Number.isFinite(seconds)) return;
      const length = seconds.toFixed(1) + " s";
      const accepted = "accepted: " + limits.minSeconds + " to " + limits.maxSeconds + " seconds.";
      if (seconds > limits.maxSeconds) say(file, file.name + " lasts " + length + ", which is too long; " + accepted);
      else if (seconds < limits.minSeconds) say(file, file.name + " lasts " + length + ", which is too short; " + accepted);
      else chosen.textContent = file.name + ", " + length + ", " + sizeOf(file.size);
    }

    function show() {
      const file = input.files[0];
      if (preview.src) URL.revokeObjectURL(preview.src);
      preview.removeAttribute("src");
      preview.hidden = true;
      if (file && file.size > limits.maxBytes) {
        say(file, file.name + " has " + sizeOf(file.size) + "; accepted: up to " + sizeOf(limits.maxBytes) + ".");
        return;
      }
      say(file, "");
      if (file) preview.src = URL.createObjectURL(file);
    }

    input.addEventListener("change", show);
    // A file that the browser cannot play may still be one that the registry can read.
    preview.addEventListener("loadedmetadata", function () { preview.hidden = false; checkLength(); });
    preview.addEventListener("durationchange", checkLength);
    return function choose(files) { input.files = files; show(); };
  }

  function prepareDrop(drop, choose) {
    ["dragenter", "dragover"].forEach(function (kind) {
      drop.addEventListener(kind, function (event) { event.preventDefault(); drop.classList.add("over"); });
    });
    ["dragleave", "drop"].forEach(function (kind) {
      drop.addEventListener(kind, function () { drop.classList.remove("over"); });
    });
    drop.addEventListener("drop", function (event) {
      event.preventDefault();
      const files = event.dataTransfer.files;
      if (files.length === 1) choose(files);
      else tellProblem("Drop one audio file; " + files.length + " were dropped.");
    });
  }

  const REFUSALS = {
    NotAllowedError: "The browser may not use the microphone. Allow it for this page in the browser's settings, or choose a file.",
    NotFoundError: "No microphone was found. Connect one, or choose a file.",
    NotReadableError: "The microphone is in use by another program. Close that program, or choose a file.",
  };

  function refusalOf(error) {
    return REFUSALS[error.name] || "The microphone cannot be used (" + error.name + "). Choose a file.";
  }

  // What one wants of a reference clip is the voice as it is, so the browser does not process it.
  const RAW = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };

  async function record(button, told, maxSeconds, choose) {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: RAW });
    const recorder = new MediaRecorder(stream);
    const chunks = [];
    const began = performance.now();
    function tick() {
      const seconds = (performance.now() - began) / 1000;
      told.textContent = "Recording, " + Math.floor(seconds) + " of at most " + maxSeconds + " seconds";
      if (seconds >= maxSeconds - 0.5 && recorder.state === "recording") recorder.stop();
    }
    const ticking = setInterval(tick, 250);
    recorder.addEventListener("dataavailable", function (event) { chunks.push(event.data); });
    recorder.addEventListener("stop", function () {
      clearInterval(ticking);
      stream.getTracks().forEach(function (track) { track.stop(); });
      const kind = recorder.mimeType.split(";")[0];
      const transfer = new DataTransfer();
      transfer.items.add(new File(chunks, "recording." + (kind.endsWith("mp4") ? "m4a" : "webm"), { type: kind }));
      choose(transfer.files);
      button.textContent = "Record again";
      told.textContent = "";
    });
    recorder.start();
    button.textContent = "Stop recording";
    tick();
    return recorder;
  }

  function prepareRecording(drop, choose) {
    const button = drop.querySelector("#record");
    const told = drop.querySelector("#recording");
    let recorder = null;
    button.parentElement.hidden = false;
    button.addEventListener("click", async function () {
      if (recorder && recorder.state === "recording") return recorder.stop();
      if (!navigator.mediaDevices || !window.MediaRecorder) {
        return tellProblem("Browsers lend the microphone only to pages over HTTPS. Open the registry by its https address, or choose a file.");
      }
      button.disabled = true;
      try {
        recorder = await record(button, told, Number(drop.dataset.maxSeconds), choose);
      } catch (error) {
        tellProblem(refusalOf(error));
      } finally {
        button.disabled = false;
      }
    });
  }

  function prepare() {
    // Words about what only this script does.
    document.querySelectorAll("[data-scripted]").forEach(function (words) { words.hidden = false; });
    document.querySelectorAll("#drop:not([data-prepared])").forEach(function (drop) {
      drop.dataset.prepared = "";
      const choose = clipInput(drop);
      prepareDrop(drop, choose);
      prepareRecording(drop, choose);
    });
  }

  document.addEventListener("DOMContentLoaded", prepare);
  document.addEventListener("htmx:afterSettle", prepare);

  // One clip plays at a time. Of two that are compared, the second goes on where the first one was.
  document.addEventListener("play", function (event) {
    document.querySelectorAll("audio").forEach(function (other) {
      if (other === event.target || other.paused) return;
      other.pause();
      if (other.closest(".compared") && event.target.closest(".compared")) event.target.currentTime = other.currentTime;
    });
  }, true);
})();
