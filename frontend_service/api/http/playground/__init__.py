"""The playground's files, which assets.py serves: plain HTML, CSS and JavaScript, without a build step.

index.html      all that is on the page
style.css       how it looks, light and dark
playground.js   what happens when somebody asks
heatmap.js      query tokens against document tokens, as a table
vectors.js      arithmetic on vectors
service.js      requests to this door
elements.js     elements of the page
"""
