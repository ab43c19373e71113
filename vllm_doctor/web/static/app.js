"use strict";
// The form works without this file. With it: drop and paste files, see them listed, and follow the progress.
(() => {
  const form = document.getElementById("form");
  const files = document.getElementById("files");
  const paste = document.getElementById("paste");
  const chosen = document.getElementById("chosen");
  const status = document.getElementById("status");
  const box = document.getElementById("progress");
  const bar = document.getElementById("bar");
  const go = document.getElementById("go");
  const words = JSON.parse(form.dataset.words);
  const limit = Number(form.dataset.limit);
  const action = form.getAttribute("action");
  let timer = 0;

  document.getElementById("drop-note").hidden = false;

  const keep = (list) => {
    const all = new DataTransfer();
    for (const file of list) all.items.add(file);
    files.files = all.files;
    show();
  };
  const add = (more) => keep([...files.files, ...more]);
  const size = (bytes) => (bytes >= 1048576 ? (bytes / 1048576).toFixed(1) + " MiB" : Math.max(1, Math.round(bytes / 1024)) + " KiB");
  const say = (text, bad) => {
    status.textContent = text;
    status.classList.toggle("error", Boolean(bad));
  };

  const show = () => {
    chosen.replaceChildren(
      ...[...files.files].map((file) => {
        const row = document.createElement("li");
        const name = document.createElement("span");
        name.textContent = file.name + " (" + size(file.size) + ")";
        const remove = document.createElement("button");
        remove.type = "button";
        remove.textContent = "×";
        remove.setAttribute("aria-label", words.remove.replace("{name}", file.name));
        remove.addEventListener("click", () => {
          keep([...files.files].filter((other) => other !== file));
          files.focus();
        });
        row.append(name, remove);
        return row;
      }),
    );
    say("");
  };
  files.addEventListener("change", show);

  // Files of dropped folders come one folder deep, as the browser hands them over.
  const hasFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (hasFiles(event)) {
      event.preventDefault();
      document.body.classList.add("dropping");
    }
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (hasFiles(event)) {
      event.preventDefault();
      add(event.dataTransfer.files);
    }
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData && event.clipboardData.files.length) {
      event.preventDefault();
      add(event.clipboardData.files);
    }
  });

  const rest = () => {
    clearTimeout(timer);
    go.disabled = false;
    box.hidden = true;
  };

  const follow = (job, failures) => {
    timer = setTimeout(async () => {
      let state = null;
      try {
        const answer = await fetch(form.dataset.base + "/progress/" + job, { cache: "no-store" });
        state = answer.ok ? await answer.json() : null;
      } catch {
        state = null;
      }
      if (state) {
        if (state.total) {
          bar.max = state.total;
          bar.value = Math.min(state.done, state.total);
        } else {
          bar.removeAttribute("value");
        }
        say((words[state.stage] || words.working).replace("{name}", state.name || ""));
      }
      if (failures < 20) follow(job, state ? 0 : failures + 1);
    }, 400);
  };

  form.addEventListener("submit", (event) => {
    const bytes = [...files.files].reduce((sum, file) => sum + file.size, new Blob([paste.value]).size);
    if (!bytes || bytes > limit) {
      event.preventDefault();
      say(bytes ? words.too_large : words.empty, true);
      paste.focus();
      return;
    }
    const job = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
    form.action = action + "&job=" + job;
    go.disabled = true;
    box.hidden = false;
    bar.removeAttribute("value");
    say(words.sending);
    follow(job, 0);
  });
  // Coming back to the form from a report finds it ready.
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) rest();
    show();
  });
})();
