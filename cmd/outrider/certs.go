package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) certsCommand() *cobra.Command {
	return a.listing(&cobra.Command{
		Use:   "certs",
		Short: "List identities: subject, SPIFFE ID, issuer, validity, source, next renewal",
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			status, err := client.Status(ctx)
			if err != nil {
				return err
			}
			return a.print(status.Identities, func() {
				t := &table{
					head: []string{"NAME", "IDENTITY", "ISSUER", "VALIDITY", "LEFT", "SOURCE",
						"RENEWAL"},
					wide: []string{"ISSUER", "SOURCE"},
				}
				for _, identity := range status.Identities {
					a.addIdentity(t, identity)
				}
				a.write(t, "no identity")
				for _, identity := range status.Identities {
					if identity.Problem != "" {
						fmt.Fprintf(a.out, "%s: %s\n", identity.Name, identity.Problem)
					}
				}
			})
		}),
	})
}

func (a *app) addIdentity(t *table, i api.Identity) {
	if i.NotAfter.IsZero() {
		t.add(i.Name, "-", "-", cell{"missing", red}, "-", "-", "-")
		return
	}
	whole, left := i.NotAfter.Sub(i.NotBefore), i.NotAfter.Sub(a.now())
	colour, leftText := green, age(left)
	switch {
	case left <= 0:
		colour, leftText = red, "expired"
	case left < whole/5:
		colour = yellow
	}
	renewal := "-"
	switch {
	case i.Renewal.IsZero():
	case i.Problem != "":
		renewal = "failing"
	default:
		renewal = "in " + age(i.Renewal.Sub(a.now()))
	}
	t.add(i.Name, cmp.Or(i.SPIFFEID, i.Subject), i.Issuer, cell{bar(left, whole), colour},
		cell{leftText, colour}, i.Source, renewal)
}

// bar draws the remaining part of a whole.
func bar(left, whole time.Duration) string {
	const width = 10
	full := 0
	if whole > 0 {
		full = min(width, max(0, int((left*width+whole-1)/whole)))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
