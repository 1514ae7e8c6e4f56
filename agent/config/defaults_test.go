package config

import (
	"flag"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

var update = flag.Bool("update", false,
	"write etc/outrider.toml and the golden files from the definitions")

func TestExampleIsWrittenFromTheDefinitions(t *testing.T) {
	parts.Golden(t, "../../etc/outrider.toml", DefaultsTOML(), *update)
}
