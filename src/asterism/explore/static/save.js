// What the page shows, as files.

export function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// The mask with its axes, and its title below.
export function savePng(name, canvas, title) {
  const style = getComputedStyle(document.documentElement), scale = window.devicePixelRatio || 1;
  const picture = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height + 30 * scale });
  const context = picture.getContext("2d");
  context.fillStyle = style.getPropertyValue("--page");
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(canvas, 0, 0);
  context.fillStyle = style.getPropertyValue("--ink");
  context.font = `${13 * scale}px system-ui, sans-serif`;
  context.fillText(title, 6 * scale, canvas.height + 20 * scale, picture.width - 12 * scale);
  picture.toBlob((blob) => save(name, "image/png", blob));
}
