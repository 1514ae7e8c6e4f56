package bus

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	packaged "outrider.org/outrider/packaging/dbus"
	"outrider.org/outrider/packaging/man"
	"outrider.org/outrider/scripts/parts"
)

var update = flag.Bool("update", false, "write the man page anew from the XML")

// comment is the documentation of an XML element: paragraphs and argument descriptions (@name: …),
// in the format of gdbus-codegen.
type comment struct {
	text      string
	arguments map[string]string
}

func readComment(text string) comment {
	read := comment{arguments: map[string]string{}}
	current := ""
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "@"):
			name, words, _ := strings.Cut(line[1:], ":")
			current, read.arguments[name] = name, strings.TrimSpace(words)
		case current != "" && line != "":
			read.arguments[current] += "\n" + line
		default:
			current = ""
			read.text += line + "\n"
		}
	}
	read.text = strings.TrimSpace(read.text)
	return read
}

// readComments returns the comments of an interface ("") and of its members.
func readComments(t *testing.T, text []byte) map[string]comment {
	t.Helper()
	comments, last, depth := map[string]comment{}, "", 0
	for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return comments
		} else if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.Comment:
			last = string(token)
		case xml.StartElement:
			depth++
			if depth == 2 || depth == 3 && last != "" { // interface or member
				name := ""
				for _, attribute := range token.Attr {
					if attribute.Name.Local == "name" && depth == 3 {
						name = attribute.Value
					}
				}
				comments[name] = readComment(last)
				last = ""
			}
		case xml.EndElement:
			depth--
		}
	}
}

// TestManPage checks that the manual page matches the XML and that the XML documents everything.
func TestManPage(t *testing.T) {
	all := readAll(t)
	page := man.New("org.outrider.Agent1", 5, "the agent on the system bus")
	page.Section("DESCRIPTION")
	page.Text(manIntroduction)
	for _, name := range []string{managerInterface, epochInterface, secretInterface} {
		text, err := fs.ReadFile(packaged.Interfaces, "interfaces/"+name+".xml")
		if err != nil {
			t.Fatal(err)
		}
		comments := readComments(t, text)
		explain := func(member string, arguments []argOfXML) comment {
			c := comments[member]
			if c.text == "" {
				t.Errorf("%s.%s is not explained", name, member)
			}
			for _, argument := range arguments {
				if c.arguments[argument.Name] == "" {
					t.Errorf("the argument %s of %s.%s is not explained",
						argument.Name, name, member)
				}
			}
			if len(c.arguments) != len(arguments) {
				t.Errorf("%s.%s has %d arguments, and %d are explained", name, member,
					len(arguments), len(c.arguments))
			}
			return c
		}
		page.Section(
			strings.ToUpper(strings.TrimPrefix(name, "org.outrider.Agent1.")) + " INTERFACE")
		page.Text("`" + name + "`. " + explain("", nil).text)
		describe(page, all[name], explain)
	}
	page.Section("ERRORS")
	for _, e := range manErrors {
		page.Term(man.Bold(e.name), e.text)
	}
	page.Section("FILES")
	page.Term(man.Italic("/usr/share/dbus-1/interfaces/org.outrider.Agent1.*.xml"),
		"The interfaces.")
	page.Term(man.Italic("/usr/share/dbus-1/system.d/org.outrider.Agent1.conf"),
		"Who may have the name, and who may call.")
	page.Term(man.Italic("/usr/share/polkit-1/actions/org.outrider.agent1.policy"),
		"Who may change something: polkit's actions.")
	page.Term(man.Italic("/usr/share/polkit-1/rules.d/50-outrider.rules"),
		"Allows all of them to group outrider.")
	page.Section("EXAMPLES")
	page.Example("busctl introspect org.outrider.Agent1 /org/outrider/Agent1\n" +
		"busctl get-property org.outrider.Agent1 /org/outrider/Agent1 org.outrider.Agent1.Manager " +
		"Ready\n" +
		"busctl call org.outrider.Agent1 /org/outrider/Agent1 org.outrider.Agent1.Manager Reload t 1\n" +
		"busctl monitor org.outrider.Agent1")
	page.SeeAlso("outriderd(8)", "outrider(1)", "outrider.toml(5)", "busctl(1)", "polkit(8)")

	file := filepath.Join(parts.RepositoryRoot(), "packaging", "man", "org.outrider.Agent1.5")
	if *update {
		if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; -update writes it", err)
	}
	if diff := cmp.Diff(string(got), page.String()); diff != "" {
		t.Errorf("%s is not what the XML says (-update writes it): -file +XML:\n%s", file, diff)
	}
}

// describe writes the documentation of an interface's members.
func describe(page *man.Page, d *description, explain func(string, []argOfXML) comment) {
	arguments := func(all []argOfXML, c comment) {
		for _, argument := range all {
			page.TermParagraph("`" + argument.Name + "`: " + c.arguments[argument.Name])
		}
	}
	for i, method := range d.Methods {
		if i == 0 {
			page.Subsection("Methods")
		}
		c := explain(method.Name, method.Args)
		term := man.Bold(method.Name) + "(" + listed(method.Args, "in") + ")"
		if out := listed(method.Args, "out"); out != "" {
			term += " \\(-> (" + out + ")"
		}
		page.Term(term, c.text)
		arguments(method.Args, c)
		if action := method.action(); action != "" {
			page.TermParagraph("Asks polkit for `" + action + "`.")
		}
	}
	for i, signal := range d.Signals {
		if i == 0 {
			page.Subsection("Signals")
		}
		c := explain(signal.Name, signal.Args)
		page.Term(man.Bold(signal.Name)+"("+listed(signal.Args, "")+")", c.text)
		arguments(signal.Args, c)
	}
	for i, property := range d.Properties {
		if i == 0 {
			page.Subsection("Properties")
		}
		page.Term(man.Bold(property.Name)+" "+man.Italic(property.Type),
			explain(property.Name, nil).text)
		switch annotated(property.Annotation, annotationChanged, "true") {
		case "const":
			page.TermParagraph("It does not change while the object is there.")
		case "false":
			page.TermParagraph("Its changes are not told.")
		}
	}
}

func listed(arguments []argOfXML, direction string) string {
	var all []string
	for _, argument := range arguments {
		if argument.Direction == direction {
			all = append(all, man.Italic(argument.Type)+" "+man.Escape(argument.Name))
		}
	}
	return strings.Join(all, ", ")
}

const manIntroduction = "outriderd is `org.outrider.Agent1` on the system bus; an instance is\n" +
	"`org.outrider.Agent1.Instance._`NAME, where NAME is escaped as systemd escapes the labels of " +
	"bus paths.\n" +
	"Its objects are below `/org/outrider/Agent1`, which is an " +
	"`org.freedesktop.DBus.ObjectManager`.\n" +
	"Nothing on the bus starts the agent: looking at a stopped proxy does not start it.\n\n" +
	"Everyone may read. A method that changes something, or shows what the modes of files hide, " +
	"asks polkit: by default\n" +
	"administrators may, with their password, and members of group outrider. Root always may, also " +
	"where there is no polkit.\n\n" +
	"Changes of properties are told by `PropertiesChanged`; values that follow each other fast may " +
	"be told as one. The bus\n" +
	"may be restarted, or be there later than the agent: the agent returns to it.\n\n" +
	"One connection may have 32 calls under way, one user 8 that change something; a message of " +
	"more than 16 KB is not read."

// manErrors documents the error replies.
var manErrors = []struct{ name, text string }{
	{errorPrefix + nameRefused,
		"The request was understood and will not be done now; the message says why."},
	{errorPrefix + nameNotAuthorized, "Polkit does not allow it, did not answer, or is not there."},
	{errorPrefix + nameNoSuchEpoch, "There is no such epoch."},
	{errorPrefix + nameInvalidArgument, "An argument makes no sense."},
	{errorPrefix + nameBusy, "Too much is under way; it may be tried again."},
	{errorPrefix + nameFailed, "Something else went wrong; the message says what."},
	{errorInteractive, "Polkit wants a password, and the caller did not allow a prompt for it."},
}
