// Package early begins the start of a keeper before all else; it is a package of its own, with one import, because of when Go
// initialises that (see package prestart).
package early

import (
	"os"

	"outrider.org/outrider/agent/keeper/prestart"
)

func init() { prestart.Begin(os.Args[1:], os.Getenv) }
