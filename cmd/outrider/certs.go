package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity/pki"
)

func (a *app) certsCommand() *cobra.Command {
	return a.listing(&cobra.Command{
		Use:   "certs",
		Short: "List identities and certificates that listeners present: validity, source, renewal",
		Long: "List the certificates of this host: its identity, credentials, and files that listeners " +
			"present, with their names, issuer, validity, source, next renewal, and the object that " +
			"uses them.\n\nLEFT is yellow, and the condition certificate-not-renewed is raised, if less " +
			"than a tenth of the lifetime and less than 14 days are left and nothing renews the " +
			"certificate; EXPIRED is the condition certificate-expired.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			status, err := client.Status(ctx)
			if err != nil {
				return err
			}
			return a.print(status.Identities, func() {
				t := &table{
					head: []string{"NAME", "IDENTITY", "ISSUER", "VALIDITY", "LEFT", "SOURCE",
						"RENEWAL", "USED BY"},
					wide: []string{"ISSUER"},
				}
				for _, identity := range status.Identities {
					a.addIdentity(t, identity)
				}
				a.write(t, "no identity, and no listener presents a certificate")
				for _, identity := range status.Identities {
					if identity.Problem != "" {
						fmt.Fprintf(a.out, "%s: %s\n", titleOf(identity), identity.Problem)
					}
				}
			})
		}),
	})
}

func (a *app) addIdentity(t *table, i api.Identity) {
	source := cmp.Or(i.File, i.Source, "-")
	users := cmp.Or(strings.Join(i.PresentedBy, ", "), "-")
	if i.NotAfter.IsZero() {
		t.add(titleOf(i), "-", "-", cell{"missing", red}, "-", source, "-", users)
		return
	}
	whole, left := i.NotAfter.Sub(i.NotBefore), a.left(i)
	renewal := "-"
	switch {
	case i.Renewal.IsZero():
	case i.Problem != "":
		renewal = "failing"
	default:
		renewal = "in " + age(i.Renewal.Sub(a.now()))
	}
	t.add(titleOf(i), identityOf(i), cmp.Or(i.Issuer, "-"),
		cell{bar(i.NotAfter.Sub(a.now()), whole), left.style}, left, source, renewal, users)
}

// left returns a cell with the remaining validity of a certificate: red if it has expired, yellow
// if it expires soon, else green.
func (a *app) left(i api.Identity) cell {
	left := i.NotAfter.Sub(a.now())
	switch {
	case left <= 0:
		return cell{"EXPIRED", red}
	case pki.EndsSoon(i.NotBefore, i.NotAfter, a.now()):
		return cell{age(left), yellow}
	}
	return cell{age(left), green}
}

// titleOf returns a title for a certificate: "credential shop", "file www.crt", or the name of its
// secret.
func titleOf(i api.Identity) string {
	if title, ok := credential.DescribeSecret(i.Name); ok {
		return title
	}
	if i.File != "" && strings.HasPrefix(i.Name, "file-") {
		return "file " + filepath.Base(i.File)
	}
	return i.Name
}

// identityOf returns the SPIFFE ID of a certificate, else its DNS names and addresses, else its
// subject.
func identityOf(i api.Identity) string {
	return cmp.Or(i.SPIFFEID, strings.Join(i.Names, ", "), i.Subject, "-")
}

// bar draws a bar that shows which part of whole is left.
func bar(left, whole time.Duration) string {
	const width = 10
	full := 0
	if whole > 0 {
		full = min(width, max(0, int((left*width+whole-1)/whole)))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
