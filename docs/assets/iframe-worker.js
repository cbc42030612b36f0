// Search runs in a worker, and browsers start no worker for a page opened from the disk (file://). There the worker's
// script runs in a hidden frame instead: a message to the worker is an event of the frame's window, and a message from
// the script is an event of the worker. As with a worker, messages are copies and arrive after the sender has returned.
// Pages from a server use the browser's workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.title = "search"
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.document.open()
      this.inside.document.write("<!doctype html><title>search</title>")
      this.inside.document.close()
      this.inside.postMessage = data => {
        const copy = structuredClone(data)
        setTimeout(() => this.answer("message", { data: copy }))
      }
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve())
      this.load(url).then(() => {
        const late = this.waiting
        this.waiting = null
        late.forEach(data => this.postMessage(data))
      })
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = done
        script.onerror = () => {
          failed(new Error(url))
          this.answer("error", { message: url })
        }
        this.inside.document.body.appendChild(script)
      })
    }
    postMessage(data) {
      const copy = structuredClone(data)
      if (this.waiting) this.waiting.push(copy)
      else setTimeout(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data: copy })))
    }
    answer(type, init) {
      const event = type === "message" ? new MessageEvent(type, init) : new ErrorEvent(type, init)
      this.dispatchEvent(event)
      if (this[`on${type}`]) this[`on${type}`](event)
    }
    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
