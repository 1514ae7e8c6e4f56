package main

import (
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
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			status, err := client.Status(command.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(status.Identities)
			}
			t := &table{head: []string{"NAME", "IDENTITY", "ISSUER", "VALIDITY", "LEFT", "SOURCE", "RENEWAL"}, wide: []string{"ISSUER", "SOURCE"}}
			for _, identity := range status.Identities {
				t.rows = append(t.rows, a.identityRow(identity))
			}
			a.write(t, "no identity of the workload; certificates of Gateways: outrider proxy secrets")
			return nil
		},
	})
}

func (a *app) identityRow(i api.Identity) []cell {
	whole, left := i.NotAfter.Sub(i.NotBefore), i.NotAfter.Sub(a.now())
	colour, leftText := green, age(left)
	switch {
	case left <= 0:
		colour, leftText = red, "expired"
	case left < whole/5:
		colour = yellow
	}
	renewal := "-"
	if !i.Renewal.IsZero() {
		renewal = "in " + age(i.Renewal.Sub(a.now()))
	}
	identity := i.SPIFFEID
	if identity == "" {
		identity = i.Subject
	}
	return []cell{text("%s", i.Name), text("%s", orDash(identity)), text("%s", orDash(i.Issuer)), {bar(left, whole), colour},
		{leftText, colour}, text("%s", i.Source), text("%s", renewal)}
}

// bar shows which part of a whole is left.
func bar(left, whole time.Duration) string {
	const width = 10
	full := 0
	if whole > 0 {
		full = min(width, max(0, int((left*width+whole-1)/whole)))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
