"""The playground's files, which assets.py serves: plain HTML, CSS and JavaScript, without a build step.

index.html      the content of the page
style.css       the style, light and dark
playground.js   the actions of the page
heatmap.js      query tokens against document tokens, as a table
vectors.js      arithmetic on vectors
service.js      requests to this API
elements.js     elements of the page
"""
