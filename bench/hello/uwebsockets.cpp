// 600 bytes from memory, with uWebSockets.
#include "App.h"

#include <cstdlib>
#include <string>

int main(int, char **arguments) {
    const std::string answer(600, 'x');
    uWS::App()
        .get("/*", [&answer](auto *response, auto *) { response->end(answer); })
        .listen("127.0.0.1", std::atoi(arguments[1]), [](auto *socket) { if (!socket) std::exit(1); })
        .run();
    return 1;
}
