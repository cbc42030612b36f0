// Screen readers announce the dialog of the search by a name, which the theme leaves out.
document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search")
