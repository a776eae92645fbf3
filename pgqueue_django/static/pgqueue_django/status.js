// Looks again every five seconds, while somebody looks on and wants it. Without it the page is as it was when it came.
const EVERY = 5000;
const label = document.querySelector(".again");
const wanted = label.querySelector("input");
const lost = document.querySelector(".lost");

async function again() {
  // What somebody has marked stays.
  if (!wanted.checked || document.hidden || `${getSelection()}`) return;
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(EVERY) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = document.querySelector("main");
    const fresh = page.querySelector("main");
    lost.hidden = Boolean(fresh);
    if (!fresh) return;
    const table = main.querySelector(".wide");
    const hadFocus = table && table === document.activeElement;
    const place = table ? table.scrollLeft : 0;
    main.replaceWith(document.adoptNode(fresh));
    const newTable = fresh.querySelector(".wide");
    if (newTable) newTable.scrollLeft = place;
    if (newTable && hadFocus) newTable.focus({ preventScroll: true });
  } catch {
    lost.hidden = false;
  }
}

label.hidden = false;
(async () => {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY));
    await again();
  }
})();
