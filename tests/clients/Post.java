// Java's own HTTP client as it comes: it offers to go on in HTTP/2 (Upgrade: h2c) with each first request in plain text.
// java Post.java URL BODY [BODY ...] posts each body by the same client, and prints status and body of each reply.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

class Post {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int place = 1; place < arguments.length; place++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(arguments[place]))
                .build();
            HttpResponse<String> reply = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(reply.statusCode() + " " + reply.body());
        }
    }
}
