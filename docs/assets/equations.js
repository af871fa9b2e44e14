// Typeset the formulas that arithmatex marks, after each page that is loaded.
document$.subscribe(() => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    const tex = text.replace(/^\\[([]/, "").replace(/\\[)\]]$/, "");
    katex.render(tex, element, { displayMode: text.startsWith("\\["), throwOnError: true });
  }
});
