/* Counts down to the end of an incident: <time data-countdown datetime="…">. The server renders the instant. */
"use strict";

(() => {
  function left(milliseconds) {
    let seconds = Math.max(0, Math.floor(milliseconds / 1000));
    const parts = [];
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]]) {
      const count = Math.floor(seconds / length);
      if (count > 0) {
        parts.push(`${count}${unit}`);
      }
      seconds %= length;
    }
    return [...parts, `${seconds}s`].join(" ");
  }

  function turn() {
    for (const element of document.querySelectorAll("time[data-countdown]")) {
      const end = new Date(element.dateTime);
      element.title = element.title || element.textContent.trim();
      element.textContent = left(end - Date.now());
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    turn();
    setInterval(turn, 1000);
  });
})();
