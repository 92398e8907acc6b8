// Before the first paint: the reader's choice of dark or light, if one was made here. Kept on this machine only.
(() => {
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* storage is off: the system's choice holds */ }
})();
