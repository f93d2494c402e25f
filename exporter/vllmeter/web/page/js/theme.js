// Set before the first paint, so that a dark page does not flash. A classic script: modules run later.
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem("vllmeter-theme");
  } catch {
    // storage is off: follow the system
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
