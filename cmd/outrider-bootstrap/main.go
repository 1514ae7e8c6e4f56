// Command outrider-bootstrap renders Envoy's bootstrap or checks typed_configs for outriderd, and
// exits; see package bootstrap. Users do not run it.
package main

import (
	"os"

	"outrider.org/outrider/agent/discovery/typedcheck"
	"outrider.org/outrider/bootstrap/render"
)

// version is set by the build.
var version = "development"

func main() {
	render.PreferOOMKill()
	os.Exit(render.Main(os.Args[1:], version, os.Stdin, os.Stdout, os.Stderr,
		typedcheck.Check))
}
