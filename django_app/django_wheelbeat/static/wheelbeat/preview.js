/* Updates the preview panel of the monitor form while the user types; shows the browser's time zone instead of the
   site's. The page works without this file: the server renders the same panel. Only text is inserted, never markup. */
"use strict";

(() => {
  const DELAY_MS = 250;
  const BUSY_MS = 1000;

  function start() {
    const panel = document.getElementById("wheelbeat-preview");
    if (!panel) {
      return;
    }
    const part = (name) => panel.querySelector(`[data-part="${name}"]`);
    const local = new Intl.DateTimeFormat(undefined, {
      weekday: "short", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
    });

    function cell(text) {
      const element = document.createElement("td");
      element.textContent = text;
      return element;
    }

    function addBrowserZone() {
      const zone = part("browser-zone");
      zone.textContent = zone.dataset.words;
      zone.title = Intl.DateTimeFormat().resolvedOptions().timeZone;
      for (const row of part("fires").rows) {
        row.lastElementChild.textContent = local.format(new Date(Number(row.dataset.fireMs)));
      }
    }

    function list(name, texts) {
      const items = texts.map((text) => {
        const item = document.createElement("li");
        item.textContent = text;
        return item;
      });
      part(name).replaceChildren(...items);
      part(name).hidden = items.length === 0;
    }

    function show(preview) {
      part("words").textContent = preview.words;
      part("zone").textContent = preview.zone;
      panel.dataset.zone = preview.zone;
      list("problems", preview.problems);
      list("notes", preview.notes);
      part("fires").replaceChildren(...preview.fires.map((fire) => {
        const row = document.createElement("tr");
        row.dataset.fireMs = fire.fire_ms;
        row.append(cell(fire.in_zone), cell(fire.utc), cell(fire.on_site));
        return row;
      }));
      part("table").hidden = preview.fires.length === 0;
      part("failure").hidden = true;
      addBrowserZone();
    }

    addBrowserZone();
    const form = panel.closest("form");
    if (!form || !form.elements.namedItem("interval_ms")) {
      return; // nothing to edit: a user who may only look
    }
    const fields = panel.dataset.fields.split(" ");
    const belongs = (name) => fields.some((field) => name === field || name === `${field}_0` || name === `${field}_1`);

    function query() {
      const pairs = [...new FormData(form)].filter(([name, value]) => belongs(name) && typeof value === "string");
      const asked = new URLSearchParams(pairs);
      asked.set("monitor", panel.dataset.monitor || "");
      return asked.toString();
    }

    let shown = query();
    let timer = null;
    let running = null;

    async function refresh() {
      const asked = query();
      if (asked === shown) {
        return;
      }
      shown = asked;
      running?.abort();
      running = new AbortController();
      const mine = running;
      try {
        const answer = await fetch(`${panel.dataset.url}?${asked}`, {
          signal: mine.signal, credentials: "same-origin", headers: {Accept: "application/json"},
        });
        if (answer.status === 429) {
          shown = null;
          setTimeout(refresh, BUSY_MS);
          return;
        }
        if (!answer.ok) {
          throw new Error(`status ${answer.status}`);
        }
        show(await answer.json());
        panel.dataset.shown = asked;
      } catch (error) {
        if (!mine.signal.aborted) {
          part("failure").hidden = false;
        }
      }
    }

    function later() {
      clearTimeout(timer);
      timer = setTimeout(refresh, DELAY_MS);
    }

    // The admin's date and time pickers set values without an event; they give the focus back, which is one.
    for (const kind of ["input", "change", "focusin"]) {
      form.addEventListener(kind, later);
    }
  }

  if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", start);
  } else {
    start();
  }
})();
