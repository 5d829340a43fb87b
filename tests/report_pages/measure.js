// Added to a copy of a page: looks at it as laid out and leaves what is wrong as text in the DOM.
addEventListener('load', () => {
  const faults = [];
  for (const folded of document.querySelectorAll('details')) folded.open = true;
  const shown = (element) => element.getClientRects().length > 0;
  const name = (element) => JSON.stringify(element.textContent.trim().slice(0, 60));
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) {
    faults.push(`the page is ${document.documentElement.scrollWidth} px wide, the window ${width}`);
  }
  const small = (element, px) => {
    if (px < 10) faults.push(`${name(element)} is ${px.toFixed(1)} px high`);
  };
  let texts = 0, pictures = 0;
  for (const svg of document.querySelectorAll('svg')) {
    if (!shown(svg)) continue;
    ++pictures;
    const frame = svg.getBoundingClientRect();
    const scale = frame.width / svg.width.baseVal.value;
    const labels = [...svg.querySelectorAll('text')].map((text) => {
      ++texts;
      small(text, parseFloat(getComputedStyle(text).fontSize) * scale);
      return [text, text.getBoundingClientRect()];
    });
    const about = svg.getAttribute('aria-label').slice(0, 40);
    labels.forEach(([text, box], i) => {
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 ||
          box.top < frame.top - 0.5 || box.bottom > frame.bottom + 0.5) {
        faults.push(`${about}: ${name(text)} runs out of the picture`);
      }
      for (const [other, its] of labels.slice(i + 1)) {
        // Boxes hold a line's whole height: letters touch only well inside of it.
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 0.5 && down > 3) faults.push(`${about}: ${name(text)} lies over ${name(other)}`);
      }
    });
    for (const line of svg.querySelectorAll('[data-bar] ~ line.limit')) {
      const at = line.getBoundingClientRect();
      const x = (at.left + at.right) / 2;
      for (const [text, box] of labels) {
        const down = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
        if (box.left < x && x < box.right && down > 1) {
          faults.push(`${about}: the capacity line crosses ${name(text)}`);
        }
      }
    }
  }
  for (const element of document.querySelectorAll('h1, h2, p, li, dt, dd, th, td, pre')) {
    if (!shown(element)) continue;
    ++texts;
    small(element, parseFloat(getComputedStyle(element).fontSize));
    const box = element.getBoundingClientRect();
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0) {
      faults.push(`${name(element)} is cut off`);
    }
    if (!element.closest('.scroll') && box.right > width + 0.5) {
      faults.push(`${name(element)} runs out of the page`);
    }
  }
  // On a desktop's window no table has columns that have to be scrolled to.
  if (width >= 1000) {
    for (const table of document.querySelectorAll('.scroll')) {
      if (shown(table) && table.clientWidth > 800 && table.scrollWidth > table.clientWidth + 1) {
        faults.push(`a table of ${table.scrollWidth} px in ${table.clientWidth}: ${name(table)}`);
      }
    }
  }
  const result = {
    page: location.pathname.split('/').pop(), faults, texts, pictures, width,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    colours: [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor],
  };
  parent.postMessage(JSON.stringify(result), '*');
});
