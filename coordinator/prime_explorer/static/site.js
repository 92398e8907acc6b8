// What pages do beyond being read: times in the reader's zone, news from the log, copying, dark and light.
(() => {
  "use strict";
  const NEWS_PAUSE_MS = 3000;

  // --- Times ---------------------------------------------------------------------------------------------------------

  const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const distance = new Intl.RelativeTimeFormat(undefined, { numeric: "always" });
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

  const showDistance = (at) => {
    const seconds = Math.round((at - Date.now()) / 1000);
    const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS[3];
    return distance.format(Math.trunc(seconds / size), unit);
  };

  const showTimes = () => {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(element.dateTime);
      const isNear = Math.abs(at - Date.now()) < 86400e3 / 2;
      element.textContent = isNear ? showDistance(at) : moment.format(at);
      element.title = moment.format(at);
    }
  };

  // --- Buttons -------------------------------------------------------------------------------------------------------

  const offerButtons = () => {
    for (const button of document.querySelectorAll("button[hidden]")) button.hidden = false;
  };

  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      await navigator.clipboard?.writeText(copy.dataset.copy);
      copy.textContent = "copied";
    }
    if (event.target.closest("[data-theme-toggle]")) {
      const theme = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      try { localStorage.setItem("theme", theme); } catch { /* it holds for this page */ }
      document.dispatchEvent(new CustomEvent("theme"));
    }
  });

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.querySelector(".search input").focus();
    }
  });

  // --- News ----------------------------------------------------------------------------------------------------------

  const listen = () => {
    if (!document.querySelector("[hx-trigger*=news]")) return;
    let isWaiting = false;
    new EventSource("/live").addEventListener("news", () => {
      if (isWaiting || document.hidden) return;
      isWaiting = true;
      setTimeout(() => {
        isWaiting = false;
        document.body.dispatchEvent(new CustomEvent("news"));
      }, NEWS_PAUSE_MS * Math.random());
    });
  };

  const refresh = () => { showTimes(); offerButtons(); };
  document.addEventListener("htmx:after:swap", refresh);
  setInterval(showTimes, 30000);
  refresh();
  listen();
})();
