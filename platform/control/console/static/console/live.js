// Every two seconds, while something on the page changes by itself: fetch the page again and swap the parts that are
// marked `data-live`. The server stays the only one that knows how anything looks.
(() => {
  const PERIOD_MS = 2000;

  async function refresh() {
    if (document.hidden || !document.querySelector('[data-live-active="yes"]')) return;
    const answer = await fetch(location.href, { credentials: "same-origin" });
    if (!answer.ok || answer.redirected) return; // signed out, or the row is gone
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.querySelector('[data-live-active="yes"]')) {
      location.reload(); // it has ended, which changes the buttons too; then nothing is asked for any more
      return;
    }
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
      if (next && next.outerHTML !== part.outerHTML && part.isConnected) part.replaceWith(document.importNode(next, true));
    }
  }

  async function loop() {
    try {
      await refresh();
    } catch {
      // the server restarts: try again
    }
    setTimeout(loop, PERIOD_MS);
  }

  setTimeout(loop, PERIOD_MS);
})();
