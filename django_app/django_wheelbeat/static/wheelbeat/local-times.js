/* Adds the distance from now and the browser's time zone to each <time data-local-time datetime="…">. */
"use strict";

(() => {
  const local = new Intl.DateTimeFormat(undefined, {
    weekday: "short", year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });
  const relative = new Intl.RelativeTimeFormat(document.documentElement.lang || undefined, {numeric: "auto"});

  function distance(milliseconds) {
    for (const [unit, length] of [["day", 86400000], ["hour", 3600000], ["minute", 60000]]) {
      if (Math.abs(milliseconds) >= length) {
        return relative.format(Math.trunc(milliseconds / length), unit);
      }
    }
    return relative.format(Math.trunc(milliseconds / 1000), "second");
  }

  function explain(event) {
    const element = event.target.closest?.("time[data-local-time]");
    if (!element) {
      return;
    }
    const instant = new Date(element.dateTime);
    element.dataset.elsewhere ??= element.title;
    element.title = [distance(instant - Date.now()), element.dataset.elsewhere, local.format(instant)]
      .filter(Boolean).join(" · ");
  }

  document.addEventListener("pointerover", explain);
  document.addEventListener("focusin", explain);
})();
